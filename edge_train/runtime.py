"""The one import of onnxruntime: quiet, and where it fails in words that help.

On 32-bit ARM and in Termux it comes from the distribution, not from pip.
"""

from __future__ import annotations

import struct
import sys
import warnings

__all__ = ["onnxruntime", "route"]


def route(system: str, termux: bool, bits: int) -> str:
    """How a machine gets an onnxruntime that can be imported."""
    if termux or system == "android":
        return (
            "in Termux: pkg upgrade && pkg install python-onnxruntime python-numpy (both must be "
            "built for the Python that is installed)"
        )
    if bits == 32:
        return (
            "32-bit systems have no wheel: apt install python3-onnxruntime (Debian trixie), and "
            "edge-train in a venv made with --system-site-packages"
        )
    return "pip install 'onnxruntime>=1.20'"


try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unsupported platform", UserWarning)  # Android
        import onnxruntime
except ImportError as error:
    import os

    _words = route(sys.platform, "TERMUX_VERSION" in os.environ, 8 * struct.calcsize("P"))
    raise ImportError(
        f"onnxruntime cannot be imported ({error}). {_words}", name="onnxruntime"
    ) from error
