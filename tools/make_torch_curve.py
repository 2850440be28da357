"""Train the demo's network in PyTorch and store the loss of each epoch: a curve to learn along.

    .venv-reference/bin/python tools/make_torch_curve.py      (make parity builds that venv)

Writes tests/golden/digits_torch.json. Weights, batches and hyperparameters are those of
tests/test_digits_curve.py; the optimizer is torch.optim.AdamW.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime.training.api import CheckpointState

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "edge_train" / "demo"
GOLDEN = ROOT / "tests" / "golden" / "digits_torch.json"
SETTINGS: dict[str, Any] = {
    "epochs": 5,
    "batch": 32,
    "seed": 5,
    "learning_rate": 1e-3,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "training_images": 1437,
}


def network() -> torch.nn.Sequential:
    """The layers of tools/make_demo.py; BatchNorm's momentum and epsilon as ONNX has them."""
    layers: list[torch.nn.Module] = []
    for channels_in, channels in ((1, 16), (16, 32)):
        layers += [
            torch.nn.Conv2d(channels_in, channels, 3, padding=1),
            torch.nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
    dense = [torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), *dense)


def load_weights(model: torch.nn.Sequential) -> None:
    names = {"0": "conv1", "1": "norm1", "4": "conv2", "5": "norm2", "9": "dense1", "11": "dense2"}
    state = CheckpointState.load_checkpoint(str(DEMO / "artifacts" / "checkpoint"))
    stored = {name: parameter.data.copy() for name, parameter in state.parameters}
    own = model.state_dict()
    for key in own:
        layer, _, rest = key.partition(".")
        if rest != "num_batches_tracked":
            own[key] = torch.from_numpy(stored.pop(f"{names[layer]}.{rest}"))
    assert not stored, f"parameters without a place: {sorted(stored)}"
    model.load_state_dict(own)


def main() -> None:
    torch.set_num_threads(1)
    with np.load(DEMO / "digits.npz") as data:
        x = (data["images"].astype(np.float32) / 16.0)[:, None]
        labels = data["labels"].astype(np.int64)
    model = network()
    load_weights(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=SETTINGS["learning_rate"],
        betas=tuple(SETTINGS["betas"]),
        eps=SETTINGS["eps"],
        weight_decay=SETTINGS["weight_decay"],
    )
    rng = np.random.default_rng(SETTINGS["seed"])
    losses, first_rows = [], []
    for _ in range(SETTINGS["epochs"]):
        order = rng.permutation(SETTINGS["training_images"])
        first_rows.append(int(order[0]))
        steps = []
        for start in range(0, len(order), SETTINGS["batch"]):
            rows = order[start : start + SETTINGS["batch"]]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                model(torch.from_numpy(x[rows])), torch.from_numpy(labels[rows])
            )
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses.append(float(np.mean(steps)))
    model.eval()
    rest = slice(SETTINGS["training_images"], None)
    with torch.no_grad():
        answers = model(torch.from_numpy(x[rest])).argmax(1).numpy()
    result = {
        **SETTINGS,
        "torch": torch.__version__,
        "first_rows": first_rows,
        "losses": losses,
        "accuracy": float((answers == labels[rest]).mean()),
    }
    GOLDEN.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
