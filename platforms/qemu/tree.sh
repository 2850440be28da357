#!/usr/bin/env bash
# A machine to run under QEMU's user mode, from Debian's packages and the wheels that pip would install
# there (case U001: nothing is compiled).                                     tree.sh KIND FOLDER
#   arm64   64-bit Raspberry Pi OS (bookworm): Python 3.11, wheels, Numba
#   armhf   32-bit Raspberry Pi OS (trixie): Python 3.13 and the distribution's onnxruntime
#   termux  laid out as Termux: Python 3.13 below /data/data/com.termux/files/usr, nothing in /usr or /tmp
# run.py starts what is in it.
set -euo pipefail
kind=$1 folder=$(realpath -m "$2")
here=$(dirname "$(realpath "$0")")
. "$here/debs.sh"
root=$folder/root site=$folder/site
mkdir -p "$folder"

# wheels PYTHON PACKAGE...: those of AArch64, unpacked into the site folder
wheels() {
  local python=$1 version platforms=(); shift
  for version in 2_34 2_28 2_27 2_26 2_17; do platforms+=(--platform "manylinux_${version}_aarch64"); done
  python3 -m pip download -qq --disable-pip-version-check --no-deps -d "$folder/wheels" --only-binary=:all: \
    --implementation cp --python-version "$python" --abi "cp${python/./}" --abi abi3 --abi none \
    "${platforms[@]}" --platform manylinux2014_aarch64 "$@"
  mkdir -p "$site"
  for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
}

# compile PYTHON FOLDER...: bytecode by a Python of the host, if it has the same; starts are twice as quick
compile() {
  local python=$1 program; shift
  for program in "python$python" "$HOME"/.pyenv/versions/"$python".*/bin/python3; do
    if "$program" -c '' 2> /dev/null; then "$program" -m compileall -q "$@" > /dev/null || true; return 0; fi
  done
}

case $kind in
arm64)
  debs arm64 bookworm "$root" python3.11-minimal libpython3.11-stdlib libstdc++6
  wheels 3.11 onnxruntime numpy flatbuffers protobuf tqdm packaging cffi pycparser numba llvmlite \
    pytest iniconfig pluggy pygments
  compile 3.11 "$site" "$root/usr/lib/python3.11"
  python=usr/bin/python3.11 program=qemu-aarch64-static ;;
armhf)
  debs armhf trixie "$root" python3-onnxruntime python3-numpy python3-flatbuffers python3-protobuf \
    python3-tqdm python3-pytest
  lib=$root/usr/lib/arm-linux-gnueabihf # what update-alternatives would link
  ln -sf blas/libblas.so.3 lapack/liblapack.so.3 "$lib"
  compile 3.13 "$root/usr/lib/python3/dist-packages" "$root/usr/lib/python3.13"
  python=usr/bin/python3.13 program=qemu-arm-static ;;
termux)
  debs arm64 trixie "$folder/debian" python3.13-minimal libpython3.13-stdlib libstdc++6
  wheels 3.13 onnxruntime==1.23.2 numpy flatbuffers protobuf tqdm packaging pytest iniconfig pluggy pygments
  prefix=data/data/com.termux/files
  # the program interpreter alone lies outside, where Android has its own: /system
  mkdir -p "$root/$prefix"/{home,usr/tmp,usr/bin,usr/lib} "$root"/{proc,sys,dev,lib,system/bin}
  cp -a "$folder/debian/usr/bin/python3.13" "$root/$prefix/usr/bin/"
  cp -a "$folder/debian/usr/lib/python3.13" "$root/$prefix/usr/lib/"
  cp -a "$folder/debian/usr/lib/aarch64-linux-gnu/." "$root/$prefix/usr/lib/"
  rm -f "$root/$prefix/usr/lib/python3.13/sitecustomize.py"
  cp -a "$here/sitecustomize.py" "$root/$prefix/usr/lib/python3.13/"
  mv "$site" "$root/$prefix/usr/lib/python3.13/site-packages"
  ln -s "/$prefix/usr/lib/ld-linux-aarch64.so.1" "$root/lib/ld-linux-aarch64.so.1"
  rm -rf "$folder/debian"
  compile 3.13 "$root/$prefix/usr/lib/python3.13"
  python=$prefix/usr/bin/python3.13 program=qemu-aarch64-static ;;
*)
  echo "tree.sh: expected arm64, armhf or termux, got '$kind'" >&2; exit 2 ;;
esac
printf '{"kind": "%s", "python": "%s", "program": "%s"}\n' "$kind" "$python" "$program" > "$folder/tree.json"
