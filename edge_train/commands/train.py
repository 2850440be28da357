"""``edge-train train``: a whole run from a TOML file, flags, or both."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import typing
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_train.commands.printing import complain, offer

if TYPE_CHECKING:
    from edge_train.governor import StopReason
    from edge_train.trainer import Result

DONE, FAILED, NOT_SAVED, RESUMABLE = 0, 1, 74, 75

_EXAMPLES = """\
examples:
  edge-train train run.toml
      a run as the file says; started again, it goes on where it was
  edge-train train --artifacts artifacts --data digits.npz --epochs 10 --rate 0.01 --folder run
      without a file
  edge-train train run.toml --epochs 20 --set training.batch_size=16 --set data.scale.x=0.00392
      flags override the file; --set takes any key
  edge-train train --options
      every key, its default and what it means

a run file:
  artifacts = "artifacts"            # paths are relative to the file
  folder = "run"
  [data]
  train = "train.npz"                # arrays named like the model's inputs
  evaluation = "test.npz"
  [training]
  epochs = 20
  [schedule]
  kind = "cosine"
  rate = 0.01
  [evaluation]
  metrics = ["accuracy"]
  best = "accuracy"

exit codes: 0 done; 1 the run failed (NaN after NaN) or does not fit into the memory budget; 2 a
mistake in the file or the flags, or an unusable file; 74 done or stopped, but the state or the best
weights could not be written; 75 stopped, the same command goes on (Ctrl-C, SIGTERM, SIGHUP, a limit
of the governor)
"""

_METRICS = (
    "comma-separated: accuracy, top5, f1, mae, rmse; of several labels a row multilabel_accuracy, "
    "multilabel_exact, multilabel_f1_micro, multilabel_f1_macro"
)

#: flags for what is set most often: (flag, key, help)
_FLAGS = (
    ("--artifacts", "artifacts", "the folder of the training artifacts"),
    ("--folder", "folder", "the run folder: states, best weights, log"),
    ("--data", "data.train", "training data: .npz, .npy, .csv, a folder"),
    ("--evaluation", "data.evaluation", "evaluation data"),
    ("--epochs", "training.epochs", "passes over the data"),
    ("--steps", "training.steps", "updates"),
    ("--batch-size", "training.batch_size", "rows of an update"),
    ("--micro-batch", "training.micro_batch", "rows that go through the graph at once"),
    ("--seed", "training.seed", "of the order of rows and of Dropout"),
    ("--schedule", "schedule.kind", "constant, linear, cosine, one_cycle, step, plateau"),
    ("--rate", "schedule.rate", "the learning rate"),
    ("--metrics", "evaluation.metrics", _METRICS),
    ("--best", "evaluation.best", "the metric that chooses the best weights (the first)"),
    ("--save-every", "saving.every", "seconds between two saves"),
    ("--memory-budget", "memory.budget", "like 200MB"),
    ("--show", "progress.show", "auto, bar, lines or none"),
)


_LIMITS = {
    "max_temperature": "°C: pause above",
    "resume_temperature": "°C: go on below (5 less)",
    "duty_cycle": "% of the time at work",
    "time_budget": "seconds of this process, then stop (exit code 75)",
    "min_battery": "%: pause below, while no power comes in",
    "require_power": "pause on battery",
    "require_wifi": "pause without wireless network",
    "min_memory": "bytes available: pause below",
    "max_pressure": "% of the time waiting for memory (PSI): pause above",
    "max_pause": "seconds: a longer pause becomes a stop",
    "memory_patience": "seconds: the same for memory",
    "interval": "seconds between two looks at the sensors",
}


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "train",
        help="train a model: a run that can be stopped, killed and started again",
        description="Fine-tune a model on this device. The run's folder keeps all that is needed "
        "to go on after a power cut: the same command does.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="RUN.toml", help="the run file")
    add_flags(parser, [flag for flag, _, _ in _FLAGS])
    parser.add_argument("--fresh", action="store_true", help="throw away the run in the folder")
    parser.add_argument("--options", action="store_true", help="list every key, and end")
    parser.set_defaults(run=_run)


def add_flags(parser: argparse.ArgumentParser, flags: Collection[str]) -> None:
    """Some of the flags, and ``--set`` for every key."""
    for flag, key, about in _FLAGS:
        if flag in flags:
            parser.add_argument(flag, dest=key, metavar="VALUE", help=about)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the run file"
    )


def overrides(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    """(key, value) of the flags that were given. ValueError for a --set without "="."""
    from edge_train.runfile.reading import parse_value

    texts = {
        "artifacts",
        "folder",
        "data.train",
        "data.evaluation",
        "evaluation.best",
        "memory.budget",
        "progress.show",
        "schedule.kind",
    }
    found: list[tuple[str, Any]] = []
    for _, key, _ in _FLAGS:
        text = getattr(arguments, key, None)
        if text is None:
            continue
        if key == "evaluation.metrics":
            found.append((key, [word for word in text.split(",") if word]))
        else:
            found.append((key, text if key in texts else parse_value(text)))
    for pair in arguments.set:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, got '{pair}'")
        found.append((key.strip(), parse_value(text.strip())))
    return found


def _run(arguments: argparse.Namespace) -> int:
    if arguments.options:
        print("\n".join(_listed()))
        return DONE
    from edge_train.training.signals import stopping

    early = _Early()
    try:
        with stopping(early.request):
            result = _result(arguments, early)
            offer(_summary(result))
            return exit_code(result)
    except _Stopped:
        complain("edge-train: stopped before the first step; the same command starts again")
        return RESUMABLE


class _Stopped(BaseException):
    """A signal came before the run, which has its own way to stop."""


class _Early:
    """What a signal does while files are read and sessions made: it ends that.

    After the run, whose result is to be told, it changes nothing.
    """

    def __init__(self) -> None:
        self.is_over = self._seen = False

    def request(self, reason: StopReason) -> None:
        self._seen = True
        self.check()

    def check(self) -> None:
        """_Stopped after a signal, one that some code in between took for an error too."""
        if self._seen and not self.is_over:
            raise _Stopped


def _result(arguments: argparse.Namespace, early: _Early) -> Result:
    from edge_train.runfile.assembly import trainer_of
    from edge_train.runfile.reading import read
    from edge_train.runfile.warnings import shown

    if arguments.file is None and not overrides(arguments):
        raise ValueError("say what to train: a run file, or flags; see edge-train train --help")
    options = read(arguments.file, overrides(arguments))
    trainer = trainer_of(options, fresh=arguments.fresh)
    with shown(trainer):
        if options.folder is None:
            trainer.tell("note", text="nothing is kept of this run: it has no folder (--folder)")
        early.check()
        result = trainer.run()  # has handlers of its own
        early.is_over = True
        return result


def exit_code(result: Result) -> int:
    """The exit code that tells how a run ended."""
    if result.failed_save:
        return NOT_SAVED
    if result.reason.finished:
        return DONE
    return RESUMABLE if result.reason.resumable else FAILED


def _summary(result: Result) -> Iterator[str]:
    minutes, seconds = divmod(int(result.seconds), 60)
    resumed = f", {result.resumed_from} of them before" if result.resumed_from else ""
    rows = [
        ("ended", result.reason.value.replace("_", " ") + _bracketed(result.detail)),
        ("steps", f"{result.steps} (epoch {result.epoch}){resumed}"),
        ("time at work", f"{minutes} min {seconds} s"),
        ("loss", "none" if result.loss is None else f"{result.loss:.4g}"),
    ]
    if result.skipped:
        rows.append(("skipped", f"{result.skipped} steps with a NaN or infinity"))
    if result.unreadable:
        rows.append(("left out", f"{result.unreadable} images that cannot be read"))
    rows += [(name, f"{value:.4g}") for name, value in result.metrics.items() if name != "loss"]
    if result.best is not None:
        best = result.best
        rows.append(("best", f"{best.metric} {best.value:.4g} at step {best.step}"))
    pauses = [(reason.replace("_", " "), time) for reason, time in result.paused.items()]
    rows += [(f"paused: {reason}", f"{time:.0f} s") for reason, time in pauses]
    if result.throttled:
        rows.append(("throttled", f"{result.throttled / 60:.1f} min"))
    rows.append(("peak memory", f"{result.peak_memory / 2**20:.0f} MB"))
    if result.failed_save:
        rows.append(("NOT SAVED", result.failed_save))
    if result.saved is not None or not result.failed_save:
        rows.append(("state", str(result.saved or "none: the run has no folder")))
    if result.reason.resumable:
        command = "edge-train " + shlex.join(a for a in sys.argv[1:] if a != "--fresh")
        rows.append(("to go on", command if result.saved else "no run folder: it starts over"))
    for name, text in rows:
        yield f"{name:>20}  {text}"


def _bracketed(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _listed() -> Iterator[str]:
    """Every key with its default and meaning, as a run file that changes nothing."""
    from edge_train.conditions import Limits
    from edge_train.runfile.options import Options

    kinds = typing.get_type_hints(Options)
    plain = [f for f in dataclasses.fields(Options) if not dataclasses.is_dataclass(kinds[f.name])]
    for field in plain:
        yield _line(field)
    for field in dataclasses.fields(Options):
        section = kinds[field.name]
        if not dataclasses.is_dataclass(section):
            continue
        yield f"\n[{field.name}]"
        for inner in dataclasses.fields(section):
            yield _line(inner, _LIMITS.get(inner.name, "") if section is Limits else "")


def _line(field: dataclasses.Field[Any], about: str = "") -> str:
    default = field.default
    if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    about = about or field.metadata.get("about", "")
    if default is None:
        return f"# {field.name} ="[:24].ljust(26) + f"  # {about}".rstrip("# ")
    return f"{field.name} = {_toml(default)}".ljust(26) + (f"  # {about}" if about else "")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return "{}" if value == {} else str(value)
