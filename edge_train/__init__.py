"""On-device fine-tuning on the stock onnxruntime wheel.

``edge_train.api`` has the names of onnxruntime.training.api. Importing the package itself imports
nothing else; ``edge_train.Trainer`` is loaded when asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_train.trainer import Trainer

__all__ = ["Trainer", "__version__", "set_seed"]

__version__ = "0.1.0"

# a library says nothing on stderr unless the application configures logging
logging.getLogger("edge_train").addHandler(logging.NullHandler())


def set_seed(seed: int) -> None:
    """Seeds the random numbers of Dropout: onnxruntime's, as onnxruntime.set_seed does, and those
    of our own kernels."""
    from edge_train import session

    session.set_seed(seed)


def __getattr__(name: str) -> Any:
    if name == "Trainer":
        from edge_train.trainer import Trainer

        return Trainer
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
