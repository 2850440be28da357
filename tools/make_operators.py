"""Write docs/operators.md from the registries of gradients and lowering.

.venv/bin/python tools/make_operators.py [--check]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from edge_train.graph import ir
from edge_train.graph.gradients import NO_GRADIENT, REFUSED, RULES
from edge_train.graph.lowering import RULES as LOWERED
from edge_train.graph.opset import NEWEST, OLDEST
from edge_train.graph.prepare.unfusing import UNFUSED

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"
HEAD = f"""\
# Operators

Made by `tools/make_operators.py` from the tables of rules; a test compares them.

A model of opset {OLDEST} to {NEWEST} is raised to opset 21 before it is differentiated.
*Gradient*: `yes`; `cut`, its outputs do not change smoothly with its inputs, so that
nothing before it is trained through it; `refused`, with what to do.
Only nodes between a trained parameter and the loss need one. An op that is missing here has
no gradient: `generate_artifacts` names every such node at once.
*Runs as*: what the device's onnxruntime gets, `itself` or standard ops in its place.

"""
TAKEN_APART = """
## Taken apart first

Each becomes several ops of the tables above before anything is differentiated:

"""
TRAINING = """
## Training ops

What training graphs are made of, here and by onnxruntime-training 1.19.2. Stock onnxruntime has
none of them; they are rewritten when a graph is loaded.

"""


def first_opsets() -> dict[str, int]:
    """Op -> the opset that it came with."""
    found: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in ir.ONNX_DOMAINS:
            known = found.get(schema.name, schema.since_version)
            found[schema.name] = min(known, schema.since_version)
    return found


def verdict(key: tuple[str, str]) -> str:
    if key in RULES:
        return "yes"
    return "cut" if key in NO_GRADIENT else f"refused: {REFUSED[key]}"


def table(domain: str, since: dict[str, int]) -> list[str]:
    lines = ["| op | since opset | gradient | runs as |", "|---|---|---|---|"]
    for key in sorted({*RULES, *NO_GRADIENT, *REFUSED}):
        if key[0] == domain:
            opset = "" if domain else str(max(since.get(key[1], 1), 1))
            runs = "standard ops" if key in LOWERED else "itself"
            lines.append(f"| {key[1]} | {opset} | {verdict(key)} | {runs} |")
    return lines


def training_ops() -> list[str]:
    return sorted(op for domain, op in LOWERED if domain and (domain, op) not in RULES)


def page() -> str:
    """The whole text."""
    since = first_opsets()
    parts = [HEAD, "## ai.onnx\n\n", "\n".join(table("", since)), "\n"]
    for domain in sorted({key[0] for key in (*RULES, *NO_GRADIENT, *REFUSED)} - {""}):
        parts += [f"\n## {domain}\n\n", "\n".join(table(domain, since)), "\n"]
    parts += [TAKEN_APART, ", ".join(sorted(UNFUSED)), "\n"]
    return "".join([*parts, TRAINING, ", ".join(training_ops()), "\n"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/operators.md.")
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
