#!/bin/bash
# Writes an error file as torch's `record` does, and exits with 1.
cat >"$TORCHELASTIC_ERROR_FILE" <<'JSON'
{"message": {"message": "ValueError: no such batch", "extraInfo": {"py_callstack":
"Traceback (most recent call last):\n  File \"train.py\", line 7, in step\nValueError: no such batch\n",
"timestamp": "1700000000"}}}
JSON
exit 1
