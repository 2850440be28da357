# Sourced: debs ARCHITECTURE SUITE FOLDER PACKAGE... unpacks Debian packages and all that they need into
# FOLDER, from an index of its own. No chroot, no binfmt, no maintainer script; the host is left alone.
debs() {
  local arch=$1 suite=$2 root=$3 state sources mirror deb; shift 3
  state=$(mktemp -d "${TMPDIR:-/tmp}/debs.XXXXXX")
  mkdir -p "$root" "$state"/{lists/partial,cache/archives/partial}
  touch "$state/status"
  sources=$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null || true)
  mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print ($2 ~ /^\[/) ? $3 : $2; exit}' <<< "$sources")
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$state/list"
  local apt=(apt-get -qq -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch"
    -o APT::Sandbox::User=root -o Dir::State="$state" -o Dir::State::lists="$state/lists"
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o Debug::NoLocking=1
    -o Dir::Etc::sourcelist="$state/list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Install-Recommends=false)
  "${apt[@]}" update && "${apt[@]}" install --download-only -y "$@" > /dev/null || { rm -rf "$state"; return 1; }
  # since trixie the package that makes these links has a script for it
  mkdir -p "$root/usr/lib"
  [ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
  for deb in "$state"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root"; done
  rm -rf "$state"
}
