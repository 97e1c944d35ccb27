#!/bin/bash
# Table 2 on one GPU: choose on the validation images, then three seeds on all of them, by both recipes; then monDEQ.
#   KOOPSIM_DATA=... [MODELS=sims|mondeq] benchmarks/table2.sh RESULTS [cifar10 svhn mnist]
# Each data set is begun as soon as KOOPSIM_DATA/NAME.ready is there, so that copying and training may overlap. A part
# whose result is in RESULTS already is left out, so the script can be given again. On an H200: SIMs about 4 minutes a
# data set, monDEQ about 2 a row.
set -u
R=$1; shift; [ $# -gt 0 ] || set -- cifar10 svhn mnist
mkdir -p "$R"
run() { echo "== $*"; timeout 590 python benchmarks/classification.py "$@" 2>&1; }
search() { [ -e "$R/search-$1.json" ] || run search "${@:2}" --out "$R/search-$1.json"; }
rows() { [ -e "$R/$1-seed0/result.json" ] || run train "${@:2}" --runs "$R"; }
ready() { until [ -e "$KOOPSIM_DATA/$1.ready" ]; do sleep 0.5; done; }
sims() {
  ready $data
  search $data-sim-single $data/sim-single --batch 64 128 --lr 7e-4 1.5e-3 3e-3 --schedule step --epochs 20 --drop 0.5
  search $data-sim-two $data/sim-two --batch 64 --lr 1.5e-3 3e-3 --schedule step --epochs 20 --drop 0.5 \
    --bandwidth 10 30 100
  rows $data-sim-single $data/sim-single --from "$R/search-$data-sim-single.json"
  rows $data-sim-two $data/sim-two --from "$R/search-$data-sim-two.json"
  search $data-sim-best $data/sim-single:best --batch 256 --lr 5e-3 1e-2 --schedule cosine --epochs 50
  rows $data-sim-single-best $data/sim-single:best --from "$R/search-$data-sim-best.json" --epochs 200
}
mondeq() {
  ready $data
  for kind in single multi; do rows $data-mondeq-$kind $data/mondeq-$kind --seeds 0; done
}
for models in ${MODELS:-sims mondeq}; do
  for data in "$@"; do $models; done
done
echo finished
