#!/bin/sh
# Builds all files of a release, twice, and compares the bytes: docs/releasing.md.
#
# Usage: scripts/release.sh [TAG]       the files are in target/release-files
#
# Packages are built for each architecture whose standard library is installed (`rustup target add`).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd -P)
cd "$root"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
out=$root/target/release-files
# The second build has another folder, with another length of its path.
clone=$root/target/second-build/of-the-same-commit

fail() { # what, why, hint
    printf 'error: %s\n  caused by: %s\nhint: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

[ "${1:-v$version}" = "v$version" ] ||
    fail "failed to release $1" "the version in Cargo.toml is $version" "name the tag v$version, or change the version"
grep -q "^## $version (20[0-9-]*)\$" CHANGELOG.md ||
    fail "failed to release $version" "CHANGELOG.md has no section \"## $version (DATE)\"" "add a section with the date of the release"
[ -z "$(git status --porcelain)" ] ||
    fail "failed to release $version" "the checkout has uncommitted changes" "commit or remove them: git status"

[ $# -eq 0 ] || [ "$(git rev-parse --verify --quiet "$1^{commit}")" = "$(git rev-parse HEAD)" ] ||
    fail "failed to release $1" "the tag does not exist, or another commit is checked out" "run: git checkout $1"

# Builds the packages of the checkout in $1, and moves them to $2.
build() {
    # It may have packages of other versions.
    rm -rf "$1/target/packages"
    for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
        if [ -d "$(rustc --print target-libdir --target "$target")" ]; then
            (cd "$1" && TARGET=$target TOOLS_ROOT=$root scripts/build-packages.sh wheel deb rpm tar >/dev/null)
            find "$1/target/packages" -maxdepth 1 -type f -exec mv {} "$2/" \;
            sbom=ragent-$version-${target%%-*}.cyclonedx.json
            cp "$1/target/packages/stage/ragent.cyclonedx.json" "$2/$sbom"
        else
            echo "skipped: the standard library of $target is not installed" >&2
        fi
    done
}

rm -rf "$out" "$clone" "$clone.files"
mkdir -p "$out" "$clone.files"
git clone --quiet "$root" "$clone"
echo "building $version" >&2
build "$root" "$out"
echo "building it again" >&2
build "$clone" "$clone.files"
diff --recursive "$out" "$clone.files" >&2 ||
    fail "failed to reproduce the packages" "two builds of the same commit differ, see above" "compare the files: diffoscope target/release-files $clone.files"
rm -rf "$root/target/second-build"

(cd "$out" && sha256sum -- * >SHA256SUMS)
# The section of this version, for the page of the release.
sed -n "/^## $version (/,/^## /{/^## /d;p}" CHANGELOG.md >"$root/target/release-notes.md"
cat "$out/SHA256SUMS"
