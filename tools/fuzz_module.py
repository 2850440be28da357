"""Flips bits of whole artifacts and trains with them: python tools/fuzz_module.py [--seconds N].

Each damaged set (training, eval and optimizer graph of a golden) is loaded and stepped in a child
process. A crash, a hang or a foreign exception is printed with the number that repeats it
(--only NUMBER) and makes the exit code 1. onnxruntime runs what a damaged graph asks for, so a
crash may be its own: the report says where.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.zoo import ZOO, ZOO_MODELS, Case  # noqa: E402

from edge_train.api import CheckpointState, Module, Optimizer  # noqa: E402
from edge_train.errors import EdgeTrainError  # noqa: E402

SECONDS_EACH = 20
MEMORY = 4 * 2**30
# what the docstrings of Module, its call and Optimizer promise for input that does not fit
PROMISED = (EdgeTrainError, IndexError, TypeError, ValueError)


def damaged(number: int) -> tuple[Case, list[bytes]]:
    """A golden's three graphs, one to three bits of one of them flipped."""
    rng = random.Random(number)
    case = ZOO[rng.choice(ZOO_MODELS)]
    graphs = [
        bytearray(p.read_bytes())
        for p in (case.training_model, case.eval_model, case.optimizer_model)
    ]
    which = rng.choices(graphs, (8, 2, 1))[0]
    for _ in range(rng.randint(1, 3)):
        which[rng.randrange(len(which))] ^= 1 << rng.randrange(8)
    return case, [bytes(graph) for graph in graphs]


def attempt(number: int) -> str:
    """Load, step, evaluate; the name of what was raised."""
    case, (training, evaluation, optimizer) = damaged(number)
    try:
        state = CheckpointState.load_checkpoint(case.checkpoint)
        module = Module(training, state, evaluation)
        stepper = Optimizer(optimizer, module)
        for _ in range(2):
            module(**case.feed)
            stepper.step()
        module.lazy_reset_grad()
        module(**case.feed)
        module.eval()
        module(**case.feed)
    except PROMISED as error:
        return type(error).__name__
    return "accepted"


def child(numbers: range, pipe: int) -> None:
    """Attempts in a row, each announced before and told after."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    for number in numbers:
        signal.alarm(SECONDS_EACH)
        os.write(pipe, f"{number} ".encode())
        os.write(pipe, f"{attempt(number)}\n".encode())
    os._exit(0)


def run(numbers: range) -> tuple[Counter[str], int, str]:
    """Outcomes, the number that ended the child (-1: none did) and how it ended."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            child(numbers, writing)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    told = [line.split() for line in lines]
    outcomes = Counter(words[1] for words in told if len(words) == 2)
    if code == 0:
        return outcomes, -1, ""
    reason = "a foreign exception" if code == 1 else signal.Signals(-code).name
    return outcomes, int(told[-1][0]) if told else numbers[0], reason


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    if asked.only is not None:
        print(attempt(asked.only))
        return 0
    outcomes: Counter[str] = Counter()
    findings: list[str] = []
    number, end = asked.first, time.monotonic() + asked.seconds
    while time.monotonic() < end:
        got, culprit, reason = run(range(number, number + 40))
        outcomes += got
        if culprit >= 0:
            findings.append(f"{culprit} ({damaged(culprit)[0].name}): {reason}")
            print("finding", findings[-1], flush=True)
        number = number + 40 if culprit < 0 else culprit + 1
    print(f"{outcomes.total()} attempts from {asked.first}: {dict(outcomes)}")
    print(f"{len(findings)} findings", *findings, sep="\n  ")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
