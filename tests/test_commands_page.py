"""docs/commands.md: every command is there with its exit codes, and says what its --help says."""

from __future__ import annotations

import re

import pytest
from support.child import ROOT

from edge_train import cli
from edge_train.conditions import Limits

PAGE = (ROOT / "docs" / "commands.md").read_text()


def commands() -> dict[str, str]:
    """The help of each command."""
    parser = cli._parser()
    (actions,) = (a for a in parser._actions if a.dest == "command")
    return {name: sub.format_help() for name, sub in (actions.choices or {}).items()}  # type: ignore[attr-defined]


def rows() -> dict[str, str]:
    """Command -> the cell of its exit codes."""
    found = re.findall(r"^\| `([a-z-]+)[^|]*\|[^|]*\| (0, [^|]*)\|$", PAGE, re.MULTILINE)
    return dict(found)


def test_every_command_has_a_row() -> None:
    assert sorted(rows()) == sorted(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_exit_codes_are_those_of_the_help(name: str) -> None:
    told = re.search(r"exit codes: ([^\n]+(?:\n[^\n]+)*)", commands()[name])
    assert told is not None
    by_help = set(re.findall(r"(?:^|[,;] )(\d+) ", told[1].replace("\n", " ")))
    assert by_help >= {"0", "2"}
    assert by_help <= set(re.findall(r"\d+", rows()[name]))


@pytest.mark.parametrize("name", sorted(commands()))
def test_help_has_an_example(name: str) -> None:
    assert re.search(rf"example(s|):\s+edge-train {name} ?", commands()[name])


def test_every_limit_is_described() -> None:
    assert [name for name in vars(Limits()) if f"`{name}`" not in PAGE] == []
