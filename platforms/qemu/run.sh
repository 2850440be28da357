#!/usr/bin/env bash
# The Python of a tree (tree.sh) on an emulated Cortex-A72, with this checkout:   run.sh FOLDER ARGUMENTS...
set -euo pipefail
folder=$(realpath "$1") checkout=$(realpath "$(dirname "$0")/../..")
shift
exec env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
  PYTHONPATH="$checkout:$checkout/tests:$folder/site" \
  qemu-aarch64-static -cpu cortex-a72 -L "$folder/root" "$folder/root/usr/bin/python3.11" "$@"
