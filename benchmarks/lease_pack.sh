#!/bin/bash
# What travels to a machine with a GPU, made here in three minutes: wheels the machine has not, pictures, the paper's
# code, and the larger data sets as one stream, of which lease_load.sh gives every call as much as there is room for.
#   lease_pack.sh SHARED OUT [SET...]      SHARED/{tools/datasets,data,peers}; OUT/first/*.tar.xz, OUT/stream, OUT/sets
# SETs in the order in which they are needed: svhn cifar10 unless told; mnist goes with the small ones, if named.
# UNSEEN, a folder of photographs that are in no table (picture_bandwidths.py), goes along.
set -eu
SHARED=$(realpath "$1") OUT=$2 PYTHON=${PYTHON:-.venv/bin/python}
SETS=("${@:3}")
[ ${#SETS[@]} -gt 0 ] || SETS=(svhn cifar10)
mkdir -p "$OUT/first" "$OUT/keep/wheels" "$OUT/keep/small/paper"
OUT=$(realpath "$OUT")
: > "$OUT/stream" > "$OUT/sets"

"$PYTHON" -m pip download --quiet --no-deps -c constraints.txt -d "$OUT/keep" tyro docstring-parser typeguard typing-extensions torchdeq
for wheel in "$OUT"/keep/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$OUT/keep/wheels"; done
tar cJf "$OUT/first/wheels.tar.xz" -C "$OUT/keep" wheels

"$PYTHON" "$SHARED/tools/datasets" build "$OUT/keep/data" "${SETS[@]}"
cp -r "$SHARED/data/natural16" "$SHARED/data/text16" "$OUT/keep/small/"
[ ! -d "$OUT/keep/data/mnist" ] || cp -r "$OUT/keep/data/mnist" "$OUT/keep/small/"
[ -z "${UNSEEN:-}" ] || cp -r "$UNSEEN" "$OUT/keep/small/unseen"
cp -r "$SHARED"/peers/uswodce-sim/src/. "$OUT/keep/small/paper/"
cp "$SHARED/tools/datasets" "$OUT/keep/small/datasets_tool.py"
chmod -R u+w "$OUT/keep/small"
tar cJf "$OUT/first/small.tar.xz" -C "$OUT/keep/small" .

for set in "${SETS[@]}"; do
  [ "$set" != mnist ] || continue
  "$PYTHON" "$SHARED/tools/datasets" pack "$OUT/keep/data" "$OUT/keep/packs/$set" "$set"
  tar cf "$OUT/keep/$set.tar" -C "$OUT/keep/packs/$set" .
  echo "$set $(stat -c %s "$OUT/keep/$set.tar") $(sha256sum < "$OUT/keep/$set.tar" | cut -d' ' -f1)" >> "$OUT/sets"
  cat "$OUT/keep/$set.tar" >> "$OUT/stream"
done
rm -rf "$OUT/keep"
du -h "$OUT"/first/* "$OUT/stream"
cat "$OUT/sets"
