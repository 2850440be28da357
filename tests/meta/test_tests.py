"""The tests themselves: each can fail, none is skipped in silence."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A call with such a name asserts (numpy.testing.assert_*, pytest.raises, a check_* of ours).
ASSERTING = ("assert", "check", "expect", "raises", "warns", "fail")
FILES = sorted(TESTS.rglob("test_*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def name_called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def asserts(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and name_called(node).lstrip("_").startswith(ASSERTING))
        for node in ast.walk(function)
    )


def silent_skip(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("pytest."):
        return False
    called = name_called(node)
    if called == "skip":
        return not node.args and not node.keywords
    return called in ("skipif", "xfail") and all(word.arg != "reason" for word in node.keywords)


def test_every_test_asserts() -> None:
    idle = [
        f"{path.relative_to(TESTS)}:{function.lineno} {function.name}"
        for path in FILES
        for function in functions(ast.parse(path.read_text()))
        if not asserts(function)
    ]
    assert not idle


def test_names_are_unique_in_a_file() -> None:
    for path in FILES:
        scopes = [node for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "body")]
        for scope in scopes:
            body = scope.body if isinstance(scope.body, list) else []
            names = Counter(node.name for node in body if isinstance(node, ast.FunctionDef))
            twice = [name for name, count in names.items() if count > 1 and name != "_"]
            assert not twice, f"{path}: {twice}: only the last one of a name runs"


def test_skips_have_reasons() -> None:
    silent = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and silent_skip(node)
    ]
    assert not silent


def test_no_packages_under_tests() -> None:
    assert not list(TESTS.rglob("__init__.py"))


def test_the_rules_see_an_idle_test() -> None:
    idle, asserting = functions(
        ast.parse("def test_a():\n  run()\ndef test_b():\n  np.testing.assert_equal(1, 1)\n")
    )
    assert not asserts(idle)
    assert asserts(asserting)
    assert silent_skip(ast.parse("pytest.skip()", mode="eval").body)
    assert silent_skip(ast.parse("pytest.mark.skipif(True)", mode="eval").body)
    assert not silent_skip(ast.parse("pytest.skip('no board')", mode="eval").body)
