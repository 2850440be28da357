"""The other end of native/release.c: gradients handed over in the middle of a run.

One function of the process receives them all and finds whom they are for by a number that is given
out here. It runs in the thread that runs the graph, while onnxruntime waits.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import lru_cache
from weakref import WeakValueDictionary

import numpy as np

from edge_train.errors import NativeError
from edge_train.kernels import native
from edge_train.kernels.contract import Floats

#: number of the gradient, the gradient (flat), the loss (flat): both only valid during the call
Receiver = Callable[[int, Floats, Floats], None]

_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
_numbers = itertools.count()


class Delivery:
    """Somebody who receives gradients: ``receiver`` is set for the time of a run.

    ``error`` keeps what the receiver raised; the run of the graph fails then.
    """

    def __init__(self) -> None:
        _install()
        self.number = next(_numbers)
        self.receiver: Receiver | None = None
        self.error: BaseException | None = None
        _DELIVERIES[self.number] = self


_DELIVERIES: WeakValueDictionary[int, Delivery] = WeakValueDictionary()


def _floats(address: int | None, count: int) -> Floats:
    if not address or count <= 0:
        return np.empty(0, np.float32)
    floats: Floats = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    return floats


def _receive(
    number: int, index: int, dy: int | None, count: int, loss: int | None, losses: int
) -> int:
    delivery = _DELIVERIES.get(number)
    if delivery is None or delivery.receiver is None or delivery.error is not None:
        return 1
    try:
        delivery.receiver(index, _floats(dy, count), _floats(loss, losses))
    except BaseException as error:  # raised again by whoever runs the graph
        delivery.error = error
        return 1
    return 0


@lru_cache(maxsize=1)
def _install() -> object:
    """Sets the process's receiving function; what is returned has to stay alive."""
    path = native.library_path()
    if path is None:
        raise NativeError(native.missing())
    function = _SIGNATURE(_receive)
    library = ctypes.CDLL(str(path))
    try:
        library.et_set_receiver(function)
    except AttributeError as error:
        raise NativeError(
            f"the native library {path} hands over no gradients ({error}); build it again with "
            "tools/build_kernels.py"
        ) from error
    return function, library
