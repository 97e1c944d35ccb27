#!/bin/bash
# Table 2 on one GPU: search on the validation images, then three seeds on all of them, by both recipes; then monDEQ.
#   KOOPSIM_DATA=... [MODELS=sims|mondeq] benchmarks/table2.sh RESULTS [cifar10 svhn mnist]
# Where the paper's whole search of CIFAR-10 (h200.sh, cifar_search) found its best trials is where these look: small
# batches and a rate that drops early. Each data set is begun as soon as KOOPSIM_DATA/NAME.ready is there, so that copying
# and training may overlap. A part whose result is in RESULTS already is left out, so the script can be given again.
# On an H200: SIMs about 5 minutes a data set, monDEQ about 2 a row.
set -u
R=$1; shift; [ $# -gt 0 ] || set -- cifar10 svhn mnist
mkdir -p "$R"
run() { echo "== $*"; timeout 590 python "benchmarks/$1" "${@:2}" 2>&1; }
search() { run search_run.py "$1" --out "$R/searches" --trials "$2" --search "${@:3}"; }
retrained() { run search_run.py "$1" --out "$R/searches" --trials "$2" --retrain 3 --search "${@:3}"; }
rows() { [ -e "$R/$1-seed0/result.json" ] || run classification.py train "${@:2}" --runs "$R"; }
ready() { until [ -e "$KOOPSIM_DATA/$1.ready" ]; do sleep 0.5; done; }
early=("recipe.batch_size=64,128" "recipe.learning_rate=log 4e-4 6e-3" recipe.schedule=step recipe.step_size=5,10
  recipe.epochs=20)
sims() {
  [ $data = cifar10 ] || retrained $data/sim-single 32 "${early[@]}"
  retrained $data/sim-two 48 "${early[@]}" "model.fourier.bandwidth=log 5 500"
  search $data/sim-single:best 12 recipe.batch_size=256 "recipe.learning_rate=log 3e-3 2e-2" recipe.schedule=cosine \
    recipe.step_size=10 recipe.epochs=50 "recipe.weight_decay=log 3e-3 0.1" "recipe.label_smoothing=0,0.05"
  rows $data-sim-single-best $data/sim-single:best --from "$R/searches/$data-sim-single-best" --epochs 200
}
mondeq() {  # by the published recipe, but for CIFAR-10's multi-tier one, whose published rate overfits
  [ $data = cifar10 ] && search $data/mondeq-multi 5 recipe.batch_size=128 "recipe.learning_rate=log 5e-4 6e-3" \
    recipe.schedule=step recipe.step_size=10 recipe.epochs=20
  for kind in single multi; do
    rows $data-mondeq-$kind $data/mondeq-$kind --seeds 0 --from "$R/searches/$data-mondeq-$kind"
  done
}
for models in ${MODELS:-sims mondeq}; do
  for data in "$@"; do ready $data; $models; done
done
echo finished
