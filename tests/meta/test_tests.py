"""The tests themselves: each can fail, none is skipped in silence."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# A call with such a name asserts (numpy.testing.assert_*, pytest.raises, a check_* of ours).
ASSERTING = ("assert", "check", "expect", "raises", "warns", "fail")
FILES = sorted(TESTS.rglob("test_*.py"))
pytestmark = pytest.mark.slow  # every test is parsed


@pytest.fixture(scope="module")
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in FILES]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def name_called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def idle_tests(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Tests that assert nothing, neither themselves nor in a function of their file."""
    by_name = {function.name: function for function in functions(tree)}

    def asserts(function: ast.FunctionDef, seen: frozenset[str]) -> bool:
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                return True
            called = name_called(node) if isinstance(node, ast.Call) else ""
            if called.lstrip("_").startswith(ASSERTING):
                return True
            if called in by_name.keys() - seen and asserts(by_name[called], seen | {called}):
                return True
        return False

    for name, function in by_name.items():
        if name.startswith("test_") and not asserts(function, frozenset({name})):
            yield function


def silent_skip(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("pytest."):
        return False
    called = name_called(node)
    if called == "skip":
        return not node.args and not node.keywords
    return called in ("skipif", "xfail") and all(word.arg != "reason" for word in node.keywords)


def test_every_test_asserts(trees: list[tuple[Path, ast.Module]]) -> None:
    idle = [
        f"{path.relative_to(TESTS)}:{function.lineno} {function.name}"
        for path, tree in trees
        for function in idle_tests(tree)
    ]
    assert not idle


def test_names_are_unique_in_a_file(trees: list[tuple[Path, ast.Module]]) -> None:
    for path, tree in trees:
        scopes = [node for node in ast.walk(tree) if hasattr(node, "body")]
        for scope in scopes:
            body = scope.body if isinstance(scope.body, list) else []
            names = Counter(node.name for node in body if isinstance(node, ast.FunctionDef))
            twice = [name for name, count in names.items() if count > 1 and name != "_"]
            assert not twice, f"{path}: {twice}: only the last one of a name runs"


def test_skips_have_reasons(trees: list[tuple[Path, ast.Module]]) -> None:
    silent = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and silent_skip(node)
    ]
    assert not silent


def test_no_packages_under_tests() -> None:
    assert not list(TESTS.rglob("__init__.py"))


def test_the_rules_see_what_they_should() -> None:
    source = """
def test_idle(): run()
def test_asserting(): np.testing.assert_equal(1, 1)
def test_by_a_function_of_the_file(): verify(1)
def verify(x): assert x
def run(): verified(1)
"""
    assert [function.name for function in idle_tests(ast.parse(source))] == ["test_idle"]
    assert silent_skip(ast.parse("pytest.skip()", mode="eval").body)
    assert silent_skip(ast.parse("pytest.mark.skipif(True)", mode="eval").body)
    assert not silent_skip(ast.parse("pytest.skip('no board')", mode="eval").body)
