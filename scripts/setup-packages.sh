#!/bin/sh
# Installs the Debian packages that tests need: ip and nft, sshd, Open MPI, MPICH, Slurm, etcd, Prometheus, Chromium, curl, jq.
#
# Usage: scripts/setup-packages.sh             the packages for `make test`
#        scripts/setup-packages.sh NAME…       other packages
#
# If all are installed, prints nothing and takes milliseconds. Without root or apt it prints the
# missing packages, and succeeds: the tests that need them skip, or fail with CI=true.
set -eu

[ $# -gt 0 ] || set -- iproute2 nftables openssh-client openssh-server openmpi-bin mpich \
    slurmctld slurmd slurm-client etcd-server etcd-client prometheus chromium-headless-shell \
    curl jq

# Prints those of its arguments that are not installed.
missing() {
    for package in "$@"; do
        state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) || state=
        [ "$state" = installed ] || printf '%s ' "$package"
    done
}

wanted=$(missing "$@")
[ -n "$wanted" ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "not installed, as this takes root and apt: $wanted(tests that need them are skipped)" >&2
    exit 0
fi

# Tests start the servers that they need, on their own ports and networks.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing $wanted" >&2
# shellcheck disable=SC2086 # a list of words
if ! apt-get install --yes --quiet --no-install-recommends $wanted >/dev/null; then
    # The package lists may be outdated.
    apt-get update --quiet >/dev/null
    # shellcheck disable=SC2086
    apt-get install --yes --quiet --no-install-recommends $wanted >/dev/null
fi
