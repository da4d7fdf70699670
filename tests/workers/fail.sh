#!/bin/bash
# Prints a reason on stderr and exits with its argument.
. "${0%/*}/prelude.sh"
announce
echo "rank $RANK gives up" >&2
exit "$1"
