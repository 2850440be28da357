"""Make a nominal checkpoint (names without data) from a full one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_train.convert.nominal import to_nominal
from edge_train.errors import CheckpointError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="the full checkpoint")
    parser.add_argument("nominal", help="the nominal checkpoint to write")
    arguments = parser.parse_args()
    try:
        to_nominal(arguments.checkpoint, arguments.nominal)
    except (CheckpointError, OSError) as error:
        print(f"to_nominal: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
