#!/bin/bash
# Writes numbered lines to stdout until it is killed, some of them in two halves. Stores the number of the last line
# that was written completely.
. "${0%/*}/prelude.sh"
exec python3 -u - "$SCRATCH/noted" <<'PY'
import os, sys
noted = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
number = 0
while True:
    number += 1
    line = b"count %09d %s\n" % (number, b"x" * (number % 97))
    cut = number % 7 * 3
    for part in (line[:cut], line[cut:]):
        while part:
            part = part[os.write(1, part):]
    os.pwrite(noted, b"%020d" % number, 0)
PY
