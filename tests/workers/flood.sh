#!/bin/bash
# Floods stdout and stderr with $1 lines each, then exits with $2.
. "${0%/*}/prelude.sh"
announce
seq -f 'stdout line %.0f of the flood, and some more words to fill it' "$1" &
seq -f 'stderr line %.0f of the flood, and some more words to fill it' "$1" >&2
wait
echo 'the last word' >&2
exit "$2"
