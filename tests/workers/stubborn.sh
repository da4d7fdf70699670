#!/bin/bash
# Ignores every signal that can be ignored, as do its children.
trap '' TERM INT HUP QUIT
. "${0%/*}/prelude.sh"
announce
exec sleep infinity
