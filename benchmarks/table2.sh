#!/bin/bash
# Table 2's SIMs on one GPU: choose on the validation images, then three seeds on all of them, by both recipes.
#   KOOPSIM_DATA=... benchmarks/table2.sh RESULTS [cifar10 svhn mnist]
# Each data set is begun as soon as KOOPSIM_DATA/NAME.ready is there, so that copying and training may overlap.
set -u
R=$1; shift; [ $# -gt 0 ] || set -- cifar10 svhn mnist
mkdir -p "$R"
run() { echo "== $*"; timeout 400 python benchmarks/classification.py "$@" 2>&1; }
for data in "$@"; do
  until [ -e "$KOOPSIM_DATA/$data.ready" ]; do sleep 0.5; done
  if [ "$data" = cifar10 ]; then
    run speed --batch 512 128 --precision bf16 float32 --repeats 5 --out "$R/classification-steps.json"
    run search cifar10/sim-single --batch 64 128 --lr 3e-3 1e-2 --schedule onecycle step --epochs 20 40 --at-once 8 \
      --seconds 100 --out "$R/search-cifar10-sim-single.json"
  else
    run search $data/sim-single --like "$R/search-cifar10-sim-single.json" --factors 0.4 1 --seconds 60 \
      --out "$R/search-$data-sim-single.json"
  fi
  run search $data/sim-two --like "$R/search-$data-sim-single.json" --factors 0.4 1 --bandwidth 3 10 30 --at-once 6 \
    --seconds 60 --out "$R/search-$data-sim-two.json"
  run train $data/sim-single $data/sim-two --from "$R"/search-$data-sim-*.json --runs "$R"
  if [ "$data" = cifar10 ]; then
    run search cifar10/sim-single:best --batch 256 --lr 2e-3 5e-3 1e-2 --schedule cosine --epochs 200 --at-once 3 \
      --out "$R/search-cifar10-sim-best.json"
    run train cifar10/sim-single:best --from "$R/search-cifar10-sim-best.json" --runs "$R"
  else
    run train $data/sim-single:best --runs "$R"
  fi
done
echo finished > "$R/finished"
