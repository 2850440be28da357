"""On-device fine-tuning on the stock onnxruntime wheel.

``edge_train.api`` has the names of onnxruntime.training.api. Importing the package itself imports
nothing else.
"""

from __future__ import annotations

import logging

__all__ = ["__version__", "set_seed"]

__version__ = "0.1.0"

# a library says nothing on stderr unless the application configures logging
logging.getLogger("edge_train").addHandler(logging.NullHandler())


def set_seed(seed: int) -> None:
    """Seeds the random numbers of onnxruntime (Dropout), as onnxruntime.set_seed does."""
    from edge_train import session

    session.set_seed(seed)
