#!/bin/bash
# Runs until it is killed.
. "${0%/*}/prelude.sh"
announce
exec sleep infinity
