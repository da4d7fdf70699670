#!/bin/sh
# Creates a Python environment in the repository, with pinned packages.
#
# Usage: scripts/setup-venv.sh            .venv, with scripts/requirements/torch-2.15.txt
#        scripts/setup-venv.sh NAME       .venvs/NAME, with scripts/requirements/NAME.txt
#        PYTHON=python3.12 scripts/setup-venv.sh
#
# May be run repeatedly: when the environment is complete, it prints nothing and takes milliseconds.
# A stamp inside the environment, written last, records the installed packages; without a matching
# stamp it is built from scratch, so the result of an interrupted run is never used.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd -P)
case ${1:-} in
"") venv=$root/.venv requirements=$root/scripts/requirements/torch-2.15.txt ;;
*) venv=$root/.venvs/$1 requirements=$root/scripts/requirements/$1.txt ;;
esac
stamp=$venv/requirements.stamp
python=${PYTHON:-python3}

fail() { # what, why, hint
    printf 'error: %s\n  caused by: %s\nhint: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

# The path is part of the stamp because scripts such as .venv/bin/torchrun contain absolute paths.
wanted() { sha256sum <"$requirements"; printf '%s\n' "$root"; }

ready() { [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted)" ]; }

[ -f "$requirements" ] ||
    fail "failed to create $venv" "there is no $requirements" \
        "name one of: $(cd "$root/scripts/requirements" && echo *.txt | sed 's/\.txt//g')"
ready && exit 0

# Two concurrent runs would delete each other's work. The second one waits, and finds it completed.
mkdir -p "$root/.work" "$(dirname "$venv")"
if command -v flock >/dev/null; then
    exec 9>"$root/.work/setup-venv.lock"
    flock 9
    ready && exit 0
fi

command -v "$python" >/dev/null ||
    fail "failed to create $venv" "\`$python\` is not on the PATH" \
        "install Python 3.11 or newer, or name one: PYTHON=/path/to/python3 $0"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "failed to create $venv" "\`$python\` is $("$python" --version 2>&1)" \
        "install Python 3.11 or newer, or name one: PYTHON=/path/to/python3 $0"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "failed to create $venv" "\`$python\` lacks the module venv or ensurepip" \
        "install it (Debian and Ubuntu: apt-get install python3-venv)"

# pip unpacks gigabytes, and /tmp is often small. Removed on every exit, also on Ctrl-C.
TMPDIR=$root/.work/setup-venv.tmp
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
rm -rf "$TMPDIR"
mkdir -p "$TMPDIR"

case $requirements in
*/packaging.txt | */operators.txt) size="less than 1 GB on disk" ;;
*) size="about 6 GB on disk (9 while it is made)" ;;
esac
echo "creating $venv: $size, several minutes the first time" >&2
rm -f "$stamp"
"$python" -m venv --clear "$venv" ||
    fail "failed to create $venv" "\`$python -m venv\` failed, see above" \
        "check that $root is writable and has 9 GB free"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --requirement "$requirements" ||
    fail "failed to install $requirements" "pip failed, see above" \
        "check the network, pip's configuration and the free space, then run $0 again"

wanted >"$stamp.new"
mv "$stamp.new" "$stamp"
echo "created $venv" >&2
