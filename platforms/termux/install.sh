#!/data/data/com.termux/files/usr/bin/sh
# edge_train in Termux:   sh install.sh [edge_train-VERSION-py3-none-any.whl]
# onnxruntime and NumPy are the distribution's: wheels of the package index do not fit Android.
set -eu
fail() { printf '%s\n' "$@" >&2; exit 1; }

case "${PREFIX:-}" in
*/com.termux/*) ;;
*) fail "this is not Termux: elsewhere pip install edge-train is all" ;;
esac
command -v pkg > /dev/null || fail "there is no command pkg: install Termux from F-Droid, the one of Google Play is too old"

pkg install -y python python-pip python-numpy python-onnxruntime

version=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for module in numpy onnxruntime; do
  if ! said=$(python -c "import $module" 2>&1); then
    fail "python-$module does not load in Python $version:" "  $(printf '%s' "$said" | tail -n 1)" \
      "The package was built for another Python. Packages follow a new Python by some days:" \
      "  pkg upgrade, then this script again;" \
      "  or wait for a newer revision of python-$module (pkg show python-$module);" \
      "  or use proot: pkg install proot-distro && proot-distro install debian, and in there pip's wheels."
  fi
done

# pure Python packages alone; --no-deps keeps pip from compiling NumPy or onnxruntime
pip install --no-deps flatbuffers protobuf tqdm
pip install --no-deps "${1:-edge-train}"
edge-train doctor
printf '%s\n' "" "Before a long run: termux-wake-lock; see README.md beside this script."
