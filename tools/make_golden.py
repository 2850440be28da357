"""Run the reference again on models of tests/golden/zoo and compare with, or write, run.npz.

    .venv/bin/python tools/make_golden.py [--write] [MODEL ...]

Without --write it prints how far each array of the new run is from the stored one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.reference import Arrays, Reference, reference_python
from support.zoo import ZOO, Case

STEPS = 10


def golden_run(reference: Reference, case: Case) -> Arrays:
    """Ten steps on the stored batch, a gradient reset after each; the keys of run.npz."""
    training = reference.load(case)
    training.set_learning_rate(case.learning_rate)
    run: Arrays = {f"feed.{name}": value for name, value in case.feed.items()}
    losses = []
    for step in range(STEPS):
        for name, value in training.parameters().items():
            run[f"step{step}.param.{name}"] = value
        losses.append(float(training.train_step(case.feed)[0]))
        for name, value in training.gradients().items():
            run[f"step{step}.grad.{name}"] = value
        training.optimizer_step()
        training.lazy_reset_grad()
    for name, value in training.parameters().items():
        run[f"final.param.{name}"] = value
    run["losses"] = np.array(losses)
    run["eval_loss"] = np.float64(training.eval_step(case.feed)[0])[()]
    run["learning_rate"] = np.float32(case.learning_rate)
    training.drop()
    return run


def distance(run: Arrays, stored: Arrays) -> float:
    """Largest difference of an array, relative to the largest value of the stored one."""
    if run.keys() != stored.keys():
        raise SystemExit(f"other arrays than stored: {sorted(run.keys() ^ stored.keys())}")
    far = 0.0
    for key, value in stored.items():
        scale = max(float(np.abs(value).max(initial=0.0)), 1e-6)
        far = max(far, float(np.abs(run[key] - value).max(initial=0.0)) / scale)
    return far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(ZOO))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    python = reference_python()
    if python is None:
        raise SystemExit("no reference venv: make parity builds it")
    reference = Reference(python)
    for name in arguments.models:
        case = ZOO[name]
        run = golden_run(reference, case)
        print(f"{name:40s} {distance(run, case.run):.2e} from the stored run")
        if arguments.write:
            np.savez_compressed(case.folder / "run.npz", **run)
    reference.close()


if __name__ == "__main__":
    main()
