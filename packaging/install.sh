#!/bin/sh
# Installs Heeler @VERSION@ for this user. It needs no root, changes no file of your shell, and says
# what it did.
#
#   HEELER_INSTALL_DIR    folder to install into (default: ~/.local)
#   HEELER_DOWNLOAD_URL   place of the archive (default: the release on GitHub)
set -eu

version=@VERSION@

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Prints the checksum of a file.
checksum() {
  if has sha256sum; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif has shasum; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  elif has openssl; then
    openssl dgst -sha256 "$1" | sed 's/.* //'
  else
    fail "no program for checksums: install sha256sum, shasum or openssl"
  fi
}

download() {
  if has curl; then
    curl --fail --silent --show-error --location --retry 3 --output "$2" "$1"
  elif has wget; then
    wget --quiet --output-document="$2" "$1"
  else
    fail "install curl or wget, or download $1 yourself"
  fi
}

# The whole script is read before anything is done: a download that breaks off does nothing.
main() {
  [ "$(uname -s)" = Linux ] || fail "there is no release for $(uname -s); build it from source: https://github.com/heeler/heeler#build-from-source"
  processor=$(uname -m)
  case $processor in arm64) processor=aarch64 ;; amd64) processor=x86_64 ;; esac
  sha256=
  case $processor in
@CHECKSUMS@
  esac
  [ -n "$sha256" ] || fail "there is no release for $processor; build it from source: https://github.com/heeler/heeler#build-from-source"

  name=heeler-$version-$processor-linux
  url=${HEELER_DOWNLOAD_URL:-https://github.com/heeler/heeler/releases/download/v$version}
  [ -n "${HEELER_INSTALL_DIR:-}${HOME:-}" ] || fail "set HOME or HEELER_INSTALL_DIR"
  to=${HEELER_INSTALL_DIR:-$HOME/.local}
  mkdir -p "$to/lib/heeler" "$to/bin" "$to/share"
  # Beside the target, so that the last step is a rename: a running daemon keeps its program.
  parts=$(mktemp -d "$to/lib/heeler/.install.XXXXXX")
  trap 'rm -rf "$parts"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM

  echo "downloading $url/$name.tar.gz"
  download "$url/$name.tar.gz" "$parts/archive" || fail "cannot download $url/$name.tar.gz"
  found=$(checksum "$parts/archive")
  [ "$found" = "$sha256" ] || fail "the archive has the checksum $found, not $sha256; nothing was installed"
  tar -xzf "$parts/archive" -C "$parts"
  "$parts/$name/heeler" --version >/dev/null || fail "the program does not run on this machine; nothing was installed"

  mv -f "$parts/$name/heeler-inside-static" "$parts/$name/heeler" "$to/lib/heeler/"
  ln -sfn ../lib/heeler/heeler "$to/bin/heeler"
  cp -R "$parts/$name/share/." "$to/share/"

  echo "installed heeler $version:"
  echo "  $to/bin/heeler, a link to $to/lib/heeler/heeler"
  echo "  $to/lib/heeler/heeler-inside-static, for agents in sandboxes and containers"
  echo "  $to/share: manual pages, and completions for bash, fish and zsh"
  case ":${PATH:-}:" in
    *":$to/bin:"*) ;;
    *) echo "$to/bin is not in PATH. Add this line to the file that your shell reads:"
       echo "  export PATH=\"$to/bin:\$PATH\"" ;;
  esac
  echo "next: heeler init"
  echo "to remove it: rm -r $to/lib/heeler $to/bin/heeler"
}

main "$@"
