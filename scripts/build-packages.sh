#!/bin/sh
# Builds packages of ragent, into target/packages.
#
# Usage: scripts/build-packages.sh KIND…            KIND is wheel, deb, rpm or tar
#        TARGET=aarch64-unknown-linux-gnu scripts/build-packages.sh wheel
#        PROFILE=release scripts/build-packages.sh wheel      not the profile of releases, `dist`, which takes twice the time
#
# All kinds contain the same program: that of the wheel, which is linked for glibc 2.17, so that it starts on every
# newer one. The linker is that of zig, which has the symbols of all versions of glibc. The bytes of the packages depend
# on the commit only, not on the machine, the folder or the time of the build.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd -P)
cd "$root"
target=${TARGET:-x86_64-unknown-linux-gnu}
arch=${target%%-*}
case $arch in
x86_64) deb_arch=amd64 ;;
*) deb_arch=arm64 ;;
esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
out=$root/target/packages
stage=$root/target/packages/stage

fail() { # what, why, hint
    printf 'error: %s\n  caused by: %s\nhint: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

case $target in
x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
*) fail "failed to build packages for $target" "it is not a supported target" \
    "set TARGET to x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu" ;;
esac
[ $# -gt 0 ] || fail "failed to build packages" "no kind is given" "name one or more of: wheel deb rpm tar"
for kind; do
    case $kind in
    wheel | deb | rpm | tar) ;;
    *) fail "failed to build the package \`$kind\`" "it is not a kind of package" "name one or more of: wheel deb rpm tar" ;;
    esac
done
[ -d "$(rustc --print target-libdir --target "$target")" ] ||
    fail "failed to build packages for $target" "the standard library of that target is not installed" \
        "run: rustup target add $target"

# Times in packages: that of the commit.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    # The first day that zip files can contain.
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800)
fi
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C.UTF-8
umask 022

# Another checkout may have the tools already.
tools_root=${TOOLS_ROOT:-$root}
"$tools_root/scripts/setup-venv.sh" packaging
tools=$tools_root/.venvs/packaging/bin

# The folders of the build are part of panic messages, unless they are replaced.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
# In this variable, the separator is a control character, so that paths may have spaces.
CARGO_ENCODED_RUSTFLAGS=$(printf -- '--remap-path-prefix=%s\037' "$root=ragent" "$cargo_home=cargo" "$sysroot=rust")
export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%?}

build_wheel() {
    rm -rf "$stage"
    rm -f "$out"/*"$arch"*.whl
    mkdir -p "$stage"
    sbom=$stage/ragent.cyclonedx.json
    "$tools/python" scripts/components.py sbom "$target" >"$sbom"
    # The licences of a wheel are in the folder of its pyproject.toml.
    cp LICENSE packaging/python/
    "$tools/python" scripts/components.py licenses "$target" >packaging/python/THIRD-PARTY.txt
    (cd packaging/python && PATH=$tools:$PATH maturin build --quiet --profile "${PROFILE:-dist}" --zig --compatibility manylinux_2_17 \
        --compression-level 9 --sbom-include "$sbom" --target "$target" --out "$out")
    "$tools/python" -m zipfile --extract "$out"/*"$arch"*.whl "$stage/wheel"
}

# Puts the files of the other packages into $stage, in the folders of a system.
stage_files() {
    share=$stage/usr/share
    mkdir -p "$stage/usr/bin" "$share/man/man1" "$stage/lib/systemd/system"
    install -m 755 "$stage"/wheel/ragent_launch-*.data/scripts/ragent packaging/notices/ragent-notices "$stage/usr/bin/"
    for page in packaging/man/*.1; do
        gzip -9n <"$page" >"$share/man/man1/$(basename "$page").gz"
    done
    for completion in bash:bash-completion/completions/ragent zsh:zsh/vendor-completions/_ragent \
        fish:fish/vendor_completions.d/ragent.fish; do
        file=$share/${completion#*:}
        mkdir -p "$(dirname "$file")"
        print_completion "${completion%%:*}" >"$file"
    done
    sed 's|/usr/local/bin/ragent|/usr/bin/ragent|' "packaging/systemd/ragent@.service" >"$stage/lib/systemd/system/ragent@.service"
    doc=$share/doc/ragent
    mkdir -p "$doc/docs" "$doc/examples"
    cp README.md CHANGELOG.md SECURITY.md packaging/python/THIRD-PARTY.txt "$doc/"
    cp docs/*.md "$doc/docs/"
    cp packaging/systemd/job.env.example packaging/prometheus/rules.yml packaging/grafana/ragent.json "$doc/examples/"
    for of in slurm kubernetes; do
        cp "packaging/exclude/$of" "$doc/examples/exclude-$of"
    done
    cp LICENSE "$stage/"
    find "$stage" -type f ! -name ragent ! -name ragent-notices -exec chmod 644 {} +
    find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# The program for another architecture does not run here; that of this machine prints the same.
print_completion() {
    "$stage/usr/bin/ragent" --print-completion "$1" 2>/dev/null ||
        env -u CARGO_ENCODED_RUSTFLAGS cargo run --quiet --locked -p ragent -- --print-completion "$1"
}

build_deb() {
    rm -f "$out"/ragent_*"$deb_arch".deb
    "$("$tools_root/scripts/setup-cargo-tools.sh" cargo-deb)" deb --quiet --no-build --no-strip --locked -p ragent --target "$target" --output "$out/"
}

build_rpm() {
    rm -f "$out"/ragent-*"$arch".rpm
    "$("$tools_root/scripts/setup-cargo-tools.sh" cargo-generate-rpm)" generate-rpm -p agent --target "$target" --arch "$arch" \
        --payload-compress gzip --source-date "$SOURCE_DATE_EPOCH" --output "$out/"
}

# For /usr/local, or any other folder.
build_tar() {
    name=ragent-$version-$arch-linux
    rm -rf "$out"/ragent-*-"$arch"-linux*
    mkdir -p "$out/$name/lib/systemd/system"
    cp -r "$stage/usr/bin" "$stage/usr/share" "$out/$name/"
    mv "$out/$name/share/zsh/vendor-completions" "$out/$name/share/zsh/site-functions"
    cp "packaging/systemd/ragent@.service" "$out/$name/lib/systemd/system/"
    cp LICENSE "$out/$name/share/doc/ragent/"
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$out" -cf - "$name" |
        gzip -9n >"$out/$name.tar.gz"
    rm -rf "${out:?}/$name"
}

build_wheel
for kind; do
    case $kind in
    wheel) ;;
    *) [ -d "$stage/usr" ] || stage_files ;;
    esac
    case $kind in
    deb) build_deb ;;
    rpm) build_rpm ;;
    tar) build_tar ;;
    esac
done
find "$out" -maxdepth 1 -type f | sort
