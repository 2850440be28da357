"""``edge-train convert``: a checkpoint into another form, one verb a form.

Each verb hands its words to a function of ``edge_train.convert``; none imports onnxruntime.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge_train.commands import comparing
from edge_train.commands.places import refuse_inputs
from edge_train.commands.verbs import add_verb, say

_EXAMPLES = """\
examples:
  edge-train convert fill nominal_checkpoint weights.bin checkpoint --model training_model.onnx
      what a client got as one buffer, as a checkpoint
  edge-train convert to-safetensors checkpoint weights.safetensors
      for PyTorch and others; from-safetensors brings it back, optimizer state and all
  edge-train convert transfer trained/checkpoint new/checkpoint start/checkpoint
      a trained backbone under a new classifier; says what did not fit
  edge-train convert average a/checkpoint b/checkpoint --weights 120 80 --out mean
      one round of federated averaging, by rows
  edge-train convert diff before/checkpoint after/checkpoint
      names, shapes, largest differences

exit codes: 0 done, 1 diff found a difference, 2 files or words that cannot be used
"""


def add_parser(commands: Any) -> None:
    """Adds the family to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "convert",
        help="turn checkpoints into other forms and back",
        description="Turn checkpoints into other forms and back, tensor by tensor.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_add_buffers, _add_formats, _add_rewrites, comparing.add_verbs):
        add(verbs)


def _add_buffers(verbs: Any) -> None:
    text = "leave the data out: names and the split alone"
    add_verb(verbs, "nominal", _nominal, text, "checkpoint", "out")
    text = "put a flat buffer (raw float32, or .npy) into a checkpoint, nominal or full"
    fill = add_verb(verbs, "fill", _fill, text, "checkpoint", "buffer", "out")
    fill.add_argument("--reset-optimizer", action="store_true", help="moments and step from zero")
    text = "the parameters as one flat buffer: raw float32, or .npy if OUT ends so"
    flat = add_verb(verbs, "flat", _flat, text, "checkpoint", "out")
    text = "what stands where in the flat buffer: offset, shape, name"
    layout = add_verb(verbs, "layout", _layout, text, "checkpoint")
    for parser in (fill, flat, layout):
        parser.add_argument(
            "--model", type=Path, required=True, metavar="TRAINING_MODEL",
            help="training_model.onnx, which has the order",
        )  # fmt: skip
        parser.add_argument(
            "--trainable-only", action="store_true", help="a buffer without the frozen parameters"
        )


def _add_formats(verbs: Any) -> None:
    for kind in ("safetensors", "npz"):
        text = f"a checkpoint as {kind}, optimizer state and properties included"
        add_verb(verbs, f"to-{kind}", _to_arrays, text, "checkpoint", "out").set_defaults(kind=kind)
        text = f"{kind} as a checkpoint"
        parser = add_verb(verbs, f"from-{kind}", _from_arrays, text, "file", "out")
        parser.set_defaults(kind=kind)
        _add_split(parser)
    text = "the weights of an ONNX model as a checkpoint"
    parser = add_verb(verbs, "from-onnx", _from_onnx, text, "model", "out")
    _add_split(parser)
    parser.add_argument("--train", nargs="+", metavar="NAME", help="names or patterns (all)")
    text = "an ONNX model (forward or eval) with the weights of a checkpoint"
    parser = add_verb(verbs, "to-onnx", _to_onnx, text, "checkpoint", "model", "out")
    parser.add_argument("--outputs", nargs="+", metavar="NAME", help="cut to what makes these")
    parser.add_argument("--external", action="store_true", help="weights in OUT.data")
    parser.add_argument("--partial", action="store_true", help="leave out what has no place")
    text = "low-rank adapters as onnxruntime's adapter file"
    parser = add_verb(verbs, "to-adapter", _to_adapter, text, "checkpoint", "out")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="names or patterns (*lora_A*..)")
    for what in ("adapter", "model"):
        parser.add_argument(f"--{what}-version", type=int, default=1, help="a number of yours (1)")


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", type=Path, metavar="CHECKPOINT", help="names and split as there")
    parser.add_argument(
        "--freeze", nargs="+", default=(), metavar="NAME", help="names or patterns not trained"
    )


def _add_rewrites(verbs: Any) -> None:
    text = "a checkpoint folder of a release before 1.16 as a file of today"
    add_verb(verbs, "upgrade", _upgrade, text, "folder", "out")
    for verb, external in (("inline", False), ("external", True)):
        text = f"a checkpoint or ONNX model with its data in {'OUT.data' if external else 'OUT'}"
        add_verb(verbs, verb, _move_data, text, "file", "out").set_defaults(external=external)
    strip = add_verb(verbs, "strip", _strip, "leave the optimizer state out", "checkpoint", "out")
    strip.add_argument("--properties", action="store_true", help="leave the properties out too")
    rename = add_verb(verbs, "rename", _rename, "rename parameters", "checkpoint", "out")
    rename.add_argument(
        "pairs", nargs="+", metavar="OLD=NEW", type=_pair, help="'module.*=*' cuts a prefix"
    )


def _pair(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (separator and old and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got '{text}'")
    return old, new


def _nominal(words: argparse.Namespace) -> int:
    from edge_train.convert.nominal import to_nominal

    to_nominal(words.checkpoint, words.out)
    return 0


def _fill(words: argparse.Namespace) -> int:
    from edge_train.convert.flat import from_flat

    refuse_inputs(words.out, words.model)
    paths = words.checkpoint, words.buffer, words.out, words.model
    from_flat(*paths, words.trainable_only, reset_optimizer=words.reset_optimizer)
    return 0


def _flat(words: argparse.Namespace) -> int:
    from edge_train.convert.flat import to_flat

    refuse_inputs(words.out, words.model)
    to_flat(words.checkpoint, words.out, words.model, words.trainable_only)
    return 0


def _layout(words: argparse.Namespace) -> int:
    from edge_train.convert.flat import layout

    slots = layout(words.checkpoint, words.model, words.trainable_only)
    rows = (f"{s.offset:>12} {list(s.shape)!s:<20} {s.name}" for s in slots)
    total = sum(slot.size for slot in slots)
    return say([f"{'offset':>12} {'shape':<20} name", *rows, f"{total:>12} elements of float32"])


def _to_arrays(words: argparse.Namespace) -> int:
    from edge_train.convert import npz, safetensors

    write = {"npz": npz.to_npz, "safetensors": safetensors.to_safetensors}[words.kind]
    write(words.checkpoint, words.out)
    return 0


def _from_arrays(words: argparse.Namespace) -> int:
    from edge_train.convert import npz, safetensors

    if words.like is not None:
        refuse_inputs(words.out, words.like)
    read = {"npz": npz.from_npz, "safetensors": safetensors.from_safetensors}[words.kind]
    read(words.file, words.out, like=words.like, frozen=words.freeze)
    return 0


def _from_onnx(words: argparse.Namespace) -> int:
    from edge_train.convert.onnx_model import from_onnx

    if words.like is not None:
        refuse_inputs(words.out, words.like)
    from_onnx(words.model, words.out, like=words.like, train=words.train, freeze=words.freeze)
    return 0


def _to_onnx(words: argparse.Namespace) -> int:
    from edge_train.convert.onnx_model import to_onnx

    left = to_onnx(
        words.checkpoint,
        words.model,
        words.out,
        outputs=words.outputs,
        external_data=words.external,
        partial=words.partial,
    )
    return say(f"no place in the model: {name}" for name in left)


def _to_adapter(words: argparse.Namespace) -> int:
    from edge_train.adapter import LOW_RANK
    from edge_train.convert.adapter import to_adapter

    names = words.names or LOW_RANK
    versions = {"adapter_version": words.adapter_version, "model_version": words.model_version}
    return say(to_adapter(words.checkpoint, words.out, names, **versions))


def _upgrade(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rewrite

    rewrite(words.folder, words.out)
    return 0


def _move_data(words: argparse.Namespace) -> int:
    from edge_train.convert.place import move_data

    move_data(words.file, words.out, external_data=words.external)
    return 0


def _strip(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rewrite

    rewrite(words.checkpoint, words.out, optimizer=False, properties=not words.properties)
    return 0


def _rename(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rename

    rename(words.checkpoint, words.out, dict(words.pairs))
    return 0
