#!/usr/bin/env bash
# The native libraries under musl's loader, where nothing of glibc is:   musl.sh NATIVE-FOLDER WORK-FOLDER
set -euo pipefail
native=$(realpath "$1") work=$(realpath -m "$2")
here=$(dirname "$(realpath "$0")")
. "$here/debs.sh"
mkdir -p "$work"

# try MACHINE DEBIAN-ARCHITECTURE TRIPLE MUSL LOADER EMULATOR...
try() {
  local machine=$1 arch=$2 triple=$3 musl=$4 loader=$5 root=$work/$1; shift 5
  if ! command -v "$triple-gcc" > /dev/null; then echo "$machine: no $triple-gcc" >&2; return 1; fi
  debs "$arch" bookworm "$root" musl musl-dev
  local lib=$root/usr/lib/$musl
  "$triple-gcc" -nostdinc -nostdlib -fno-stack-protector -no-pie -o "$work/loader-$machine" \
    "$lib/crt1.o" "$lib/crti.o" "$here/loader.c" "$lib/libc.so" "$lib/crtn.o" \
    -Wl,--dynamic-linker="$root/lib/$loader" -lgcc
  echo "$machine: $(timeout 60 "$@" "$work/loader-$machine" "$native/libedge_train_$machine.so")"
}
# the loader's path is in the program: -L would look for it below itself
try x86_64 amd64 x86_64-linux-gnu x86_64-linux-musl ld-musl-x86_64.so.1 env
try aarch64 arm64 aarch64-linux-gnu aarch64-linux-musl ld-musl-aarch64.so.1 qemu-aarch64-static -cpu cortex-a53
try armv7 armhf arm-linux-gnueabihf arm-linux-musleabihf ld-musl-armhf.so.1 qemu-arm-static -cpu cortex-a7
