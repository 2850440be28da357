"""What each lane of the tests selects, and what to type to run it."""

from __future__ import annotations

# marker -> command; a test without any of these markers is of the smoke tier (make test).
LANES = {
    "slow": "make slow",
    "parity": "make parity",
    "bench": "make bench",
    "device": ".venv/bin/pytest -m device",
    "public": ".venv/bin/pytest -m public",
    "qemu": ".venv/bin/pytest -m qemu",
}
# Every test in such a folder of tests/ carries the marker of the same name.
FOLDERS = ("parity", "bench", "qemu", "public", "device")
