#!/bin/sh
# Installs a pinned tool of cargo into the repository, and prints its path.
#
# Usage: scripts/setup-cargo-tools.sh NAME      cargo-deb or cargo-generate-rpm
set -eu

case ${1:-} in
cargo-deb) version=3.8.0 ;;
cargo-generate-rpm) version=0.21.1 ;;
*)
    printf 'error: failed to install the tool `%s`\n  caused by: it is not known\nhint: name cargo-deb or cargo-generate-rpm\n' "${1:-}" >&2
    exit 1
    ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd -P)
folder=$root/.work/tools/$1-$version
if [ ! -x "$folder/bin/$1" ]; then
    echo "installing $1 $version: a few minutes the first time" >&2
    # Without optimization, since each runs for seconds.
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS cargo install --quiet --locked --debug --root "$folder" --version "$version" "$1" >&2
fi
echo "$folder/bin/$1"
