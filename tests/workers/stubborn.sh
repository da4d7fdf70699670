#!/bin/bash
# Ignores every signal that can be ignored, as does what it starts.
trap '' TERM INT HUP QUIT
. "${0%/*}/prelude.sh"
announce
exec sleep infinity
