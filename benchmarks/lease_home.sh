#!/bin/bash
# What a call of a lease brought back is recorded and committed, here, from the repository's root.
#   lease_home.sh FOLDER [SECONDS]      FOLDER: a copy of the call's files; SECONDS to wait first, while the next call's tree travels
# The whole tree is there for as long as it takes (lease_load.sh); tools/lease_home.py does the rest.
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
sleep "${2:-0}"
part=$(git sparse-checkout list 2> /dev/null || true)
smaller() { [ -z "$part" ] || git sparse-checkout set --no-cone $part; }
trap smaller EXIT
[ -z "$part" ] || git sparse-checkout disable
"$PYTHON" tools/lease_home.py "$1"
