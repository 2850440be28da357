"""``python -m edge_train`` is the command ``edge-train``."""

import sys

from edge_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
