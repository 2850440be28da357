#!/usr/bin/env bash
# The official C header of onnxruntime, from Debian trixie's libonnxruntime-dev, unpacked into FOLDER.
set -euo pipefail
folder=$(realpath -m "$1") state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$folder" "$state"/{lists/partial,cache/archives/partial}
touch "$state/status"
sources=$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null || true)
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print ($2 ~ /^\[/) ? $3 : $2; exit}' <<< "$sources")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror trixie main" > "$state/sources.list"
apt() {
  apt-get -qq -o APT::Sandbox::User=root -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
    -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=- \
    -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}
apt update
(cd "$state" && apt download libonnxruntime-dev)
dpkg-deb -x "$state"/libonnxruntime-dev_*.deb "$folder"
