#!/bin/bash
# What travels to a machine with a GPU, made here in three minutes: wheels the machine has not, pictures, the paper's
# code, MNIST, and the larger data sets in pieces that fit a transfer.
#   lease_pack.sh SHARED OUT [MIB [SET...]]      SHARED/{tools/datasets,data,peers}; OUT/first/*.tar.xz, then OUT/01, 02, ...
# SETs: cifar10 svhn unless told. UNSEEN, a folder of photographs that are in no table (picture_bandwidths.py), goes along.
# A transfer holds the working tree too, of 64 MiB: move results/h200 (21 MiB) away while the lease lasts, and give what is left.
set -eu
SHARED=$(realpath "$1") OUT=$2 MIB=${3:-38} PYTHON=${PYTHON:-.venv/bin/python}
SETS=("${@:4}")
[ ${#SETS[@]} -gt 0 ] || SETS=(cifar10 svhn)
mkdir -p "$OUT/first" "$OUT/keep/wheels" "$OUT/keep/small/paper"
OUT=$(realpath "$OUT")

"$PYTHON" -m pip download --quiet --no-deps -c constraints.txt -d "$OUT/keep" tyro docstring-parser typeguard typing-extensions torchdeq
for wheel in "$OUT"/keep/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$OUT/keep/wheels"; done
tar cJf "$OUT/first/wheels.tar.xz" -C "$OUT/keep" wheels

"$PYTHON" "$SHARED/tools/datasets" build "$OUT/keep/data" mnist "${SETS[@]}"
cp -r "$SHARED/data/natural16" "$SHARED/data/text16" "$OUT/keep/data/mnist" "$OUT/keep/small/"
[ -z "${UNSEEN:-}" ] || cp -r "$UNSEEN" "$OUT/keep/small/unseen"
cp -r "$SHARED"/peers/uswodce-sim/src/. "$OUT/keep/small/paper/"
cp "$SHARED/tools/datasets" "$OUT/keep/small/datasets_tool.py"
chmod -R u+w "$OUT/keep/small"
tar cJf "$OUT/first/small.tar.xz" -C "$OUT/keep/small" .

"$PYTHON" "$SHARED/tools/datasets" pack "$OUT/keep/data" "$OUT/keep/packs" "${SETS[@]}"
tar cf - -C "$OUT/keep/packs" . | split -b "${MIB}M" -d -a 2 --numeric-suffixes=1 - "$OUT/keep/piece"
for piece in "$OUT"/keep/piece??; do
  mkdir -p "$OUT/${piece: -2}" && mv "$piece" "$OUT/${piece: -2}/"
done
rm -rf "$OUT/keep"
du -sh "$OUT"/*
