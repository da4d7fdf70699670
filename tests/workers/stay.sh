#!/bin/bash
# Stays until it is ended.
. "${0%/*}/prelude.sh"
announce
exec sleep infinity
