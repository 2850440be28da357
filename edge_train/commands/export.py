"""``edge-train export``: trained weights and eval graph as one model for plain onnxruntime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge_train.commands.places import artifacts_of, refuse_inputs, run_files
from edge_train.printable import printable

_EXAMPLES = """\
examples:
  edge-train export run.toml
      the best weights of the run (else the newest), as inference.onnx in its folder
  edge-train export runs/digits --eval artifacts/eval_model.onnx
      the same without a run file
  edge-train export checkpoint --eval eval_model.onnx --output logits --out digits.onnx
      a checkpoint; the tensor that the exported model gives
  edge-train export artifacts
      checkpoint and eval_model.onnx of that folder

exit codes: 0 written, 2 files that do not fit, or no place to write
"""
_SOURCES = "a run file, a run's folder, a folder of artifacts, or a checkpoint"


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "export",
        help="make an inference model of trained weights",
        description="Write an ONNX model with the trained weights for plain onnxruntime.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help=_SOURCES)
    parser.add_argument(
        "--eval", type=Path, metavar="MODEL", help="(eval_model.onnx beside the checkpoint)"
    )
    parser.add_argument(
        "--output",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="tensors to give (the eval model's outputs without the loss, else the prediction)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="(inference.onnx beside it)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train.checkpoint.state import CheckpointState
    from edge_train.errors import NominalStateError
    from edge_train.export import write_inference_model
    from edge_train.graph import onnx_codec
    from edge_train.graph.passes import evaluation_form
    from edge_train.graph.roles import accumulators

    if not arguments.source.exists():
        raise ValueError(f"there is no '{arguments.source}': give {_SOURCES}")
    checkpoint, eval_model, prediction = _found(arguments.source)
    eval_model = arguments.eval or eval_model
    if not eval_model.is_file():
        raise ValueError(f"'{eval_model}' is no file: say with --eval where the eval model is")
    state = CheckpointState.load_checkpoint(checkpoint)
    if state.is_nominal:
        raise NominalStateError(f"'{checkpoint}' is nominal: it has no weights to export")
    model = evaluation_form(onnx_codec.load(eval_model))
    if accumulators(model.graph):
        raise ValueError(f"'{eval_model}' makes gradients: give eval_model.onnx as --eval")
    names = {name for name, _ in state.parameters}
    outputs = arguments.output or prediction or _default_outputs(model, names)
    out = arguments.out or checkpoint.with_name("inference.onnx")
    beside = [*artifacts_of(eval_model), *run_files(checkpoint.parent)]
    refuse_inputs(out, arguments.source, checkpoint, eval_model, *beside)
    write_inference_model(model, state, outputs, out)
    size = out.stat().st_size / 2**20
    print(printable(f"{out}: {', '.join(outputs)}, {size:.2f} MB, from {checkpoint}"))
    return 0


def _found(source: Path) -> tuple[Path, Path, list[str]]:
    """The checkpoint, the eval model and the tensors that a source stands for."""
    if source.suffix == ".toml":
        return _of_run_file(source)
    checkpoint = _checkpoint(source)
    return checkpoint, checkpoint.with_name("eval_model.onnx"), []


def _of_run_file(source: Path) -> tuple[Path, Path, list[str]]:
    from edge_train.runfile.reading import read
    from edge_train.training.run_folder import weights_in

    options = read(source)
    for key in ("folder", "artifacts"):
        if getattr(options, key) is None:
            raise ValueError(f"'{source}' has no key '{key}': export a folder or a checkpoint")
    folder, artifacts = Path(options.folder or ""), Path(options.artifacts or "")
    eval_model = artifacts / f"{options.prefix}eval_model.onnx"
    prediction = options.evaluation.prediction
    return weights_in(folder), eval_model, [prediction] if prediction else []


def _checkpoint(source: Path) -> Path:
    """The checkpoint itself, the one among artifacts, or the best of a run."""
    from edge_train.training.run_folder import weights_in

    if source.suffix == ".onnx":
        raise ValueError(f"'{source}' is a model: give {_SOURCES}")
    if not source.is_dir() or any(source.glob("*.pbseq")):
        return source
    inside = source / "checkpoint"
    return inside if inside.is_file() else weights_in(source)


def _default_outputs(model: Any, parameters: set[str]) -> list[str]:
    from edge_train.training.predictions import judged

    others = [value.name for value in model.graph.outputs[1:]]
    if others:
        return others
    found = judged(model, parameters)
    if found is None:
        last = [name for node in model.graph.nodes[-6:] for name in node.outputs if name]
        raise ValueError(
            f"nothing in the eval model says what the prediction is; name it with --output; the "
            f"last tensors are {', '.join(last)}"
        )
    return [found.prediction]
