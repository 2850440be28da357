"""The converters from a checkout that is not installed: python tools/convert.py VERB ..."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_train.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
