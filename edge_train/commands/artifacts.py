"""``edge-train artifacts``: training artifacts of an ONNX model from the shell."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from edge_train.commands.places import ARTIFACTS, refuse_inputs
from edge_train.printable import printable

_LOSSES = {
    "mse": "MSELoss",
    "l1": "L1Loss",
    "huber": "HuberLoss",
    "cross-entropy": "CrossEntropyLoss",
    "bce-with-logits": "BCEWithLogitsLoss",
    "kl-div": "KLDivLoss",
    "none": None,
}
_OPTIMIZERS = ("adamw", "sgd")
_EXAMPLES = """\
examples:
  edge-train artifacts model.onnx --loss cross-entropy --out artifacts
      every weight trained with AdamW
  edge-train artifacts model.onnx --loss cross-entropy --train 'classifier.*' --nominal
      the head alone, and a checkpoint without data for federated clients
  edge-train artifacts yolo.onnx --loss mse --loss-input boxes --freeze 'backbone.*'
      one of several outputs, part of the network frozen
  edge-train artifacts model.onnx --loss none --optimizer sgd --clip 1.0
      the first output is the loss already; gradients clipped to norm 1

exit codes: 0 written, 2 a model or words that cannot be used
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "artifacts",
        help="make training artifacts of an ONNX model",
        description="Write training_model.onnx, eval_model.onnx, optimizer_model.onnx and "
        "checkpoint for a forward model.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="the forward model, an .onnx file")
    parser.add_argument("--loss", required=True, choices=_LOSSES, help="what is minimised")
    parser.add_argument(
        "--out", type=Path, default=Path("."), metavar="DIR", help="made if missing"
    )
    parser.add_argument("--optimizer", choices=_OPTIMIZERS, default="adamw", help="(adamw)")
    several = {"nargs": "+", "action": "extend", "metavar": "NAME"}
    parser.add_argument("--train", **several, help="parameters, or patterns like 'head.*' (all)")
    parser.add_argument("--freeze", **several, help="parameters kept as they are")
    parser.add_argument("--loss-input", **several, help="outputs that the loss takes")
    parser.add_argument("--output", **several, help="outputs to give beside the loss")
    parser.add_argument("--clip", type=float, metavar="NORM", help="clip gradients to this norm")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="of adamw (0)")
    parser.add_argument("--prefix", default="", help="what the file names begin with")
    parser.add_argument("--nominal", action="store_true", help="a checkpoint without data too")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train.artifacts import generate_artifacts

    if arguments.optimizer == "sgd" and arguments.weight_decay:
        raise ValueError("--weight-decay belongs to adamw; sgd has none")
    for name in ARTIFACTS:
        refuse_inputs(arguments.out / f"{arguments.prefix}{name}", arguments.model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        generate_artifacts(
            arguments.model,
            requires_grad=arguments.train,
            frozen_params=arguments.freeze,
            loss=_loss(arguments.loss),
            optimizer=_optimizer(arguments),
            artifact_directory=arguments.out,
            prefix=arguments.prefix,
            additional_output_names=arguments.output,
            nominal_checkpoint=arguments.nominal,
            loss_input_names=arguments.loss_input,
        )
    for note in said:
        print(printable(f"note: {note.message}"))
    print(printable(_summary(arguments.out, arguments.prefix)))
    return 0


def _loss(word: str) -> Any:
    from edge_train import onnxblock

    name = _LOSSES[word]
    return None if name is None else getattr(onnxblock.loss, name)()


def _optimizer(arguments: argparse.Namespace) -> Any:
    from edge_train.onnxblock import optim

    clip = None if arguments.clip is None else optim.ClipGradNorm(arguments.clip)
    if arguments.optimizer == "sgd":
        return optim.SGD(clip_grad=clip)
    return optim.AdamW(weight_decay=arguments.weight_decay, clip_grad=clip)


def _summary(folder: Path, prefix: str) -> str:
    """What is trained, in numbers."""
    from edge_train.checkpoint.files import open_checkpoint

    with open_checkpoint(folder / f"{prefix}checkpoint") as state:
        counts = [
            (len(tensors), sum(tensor.nbytes for tensor in tensors) / 2**20)
            for tensors in (state.trainable, state.frozen)
        ]
    (trained, size), (frozen, frozen_size) = counts
    return (
        f"{folder}: {trained} parameters to train ({size:.2f} MiB), {frozen} frozen "
        f"({frozen_size:.2f} MiB)"
    )
