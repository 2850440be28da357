#!/usr/bin/env bash
# A 64-bit ARM system to run under QEMU's user mode: Debian's Python 3.11 and the AArch64 wheels that pip
# would install on a Raspberry Pi (case U001: nothing is compiled).        tree.sh FOLDER [CPU-PART]
# No chroot, no binfmt: packages are unpacked, run.sh starts the interpreter.
set -euo pipefail
folder=$(realpath -m "$1") part=${2:-0xd08} # 0xd08: Cortex-A72, a Raspberry Pi 4
root=$folder/root site=$folder/site state=$folder/apt
mkdir -p "$root" "$site" "$state"/{lists/partial,cache/archives/partial,debs}
touch "$state/status"

# a package index of its own, so that the host's is left alone
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status" \
    -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=- \
    -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}
apt update
(cd "$state/debs" && apt download libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libpython3.11-minimal \
  libpython3.11-stdlib python3.11-minimal libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libssl3)
for package in "$state"/debs/*.deb; do dpkg-deb -x "$package" "$root"; done

platforms=()
for version in 2_28 2_27 2_26 2_17; do platforms+=(--platform "manylinux_${version}_aarch64"); done
python3 -m pip download -q --disable-pip-version-check -d "$folder/wheels" --only-binary=:all: \
  --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
  "${platforms[@]}" --platform manylinux2014_aarch64 \
  onnxruntime numpy flatbuffers protobuf tqdm cffi pytest
for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done

# QEMU shows the host's /proc/cpuinfo, at which onnxruntime's processor detection crashes
mkdir -p "$root/proc" "$root/sys/devices/system/cpu"
for cpu in 0 1; do
  printf 'processor\t: %d\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n' $cpu
  printf 'CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: %s\nCPU revision\t: 3\n\n' "$part"
done > "$root/proc/cpuinfo"
for file in possible present online; do echo 0-1 > "$root/sys/devices/system/cpu/$file"; done
