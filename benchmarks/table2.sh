#!/bin/bash
# Table 2 on one GPU: search on the validation images, then three seeds on all of them; the second recipe; then monDEQ.
#   KOOPSIM_DATA=... [MODELS=sims|mondeq] benchmarks/table2.sh RESULTS [cifar10 svhn mnist]
# Where the paper's whole search of CIFAR-10 (h200.sh, cifar_search) found its best trials is where these look: small
# batches, a large rate and a drop after five epochs. Each data set is begun as soon as KOOPSIM_DATA/NAME.ready is there, so
# that copying and training may overlap. A part whose result is in RESULTS already is left out, so the script can be given
# again. On an H200: SIMs about 2 minutes a data set, monDEQ about a minute a row.
set -u
R=$1; shift; [ $# -gt 0 ] || set -- cifar10 svhn mnist
mkdir -p "$R"
run() { echo "== $(date +%T) $*"; timeout 590 python "benchmarks/$1" "${@:2}" 2>&1; }
search() { run search_run.py "$1" --out "$R/searches" --trials "$2" --grace "$3" "${@:4}"; }
ready() { until [ -e "$KOOPSIM_DATA/$1.ready" ]; do sleep 0.5; done; }
rows() {  # name, seeds, options: a process a seed, side by side
  for seed in $2; do
    [ -e "$R/${1//[\/:]/-}-seed$seed/result.json" ] || run classification.py train "$1" --runs "$R" --seeds $seed "${@:3}" &
  done; wait
}
early=(recipe.batch_size=128 "recipe.learning_rate=log 1.5e-3 6e-3" recipe.schedule=step recipe.step_size=5 recipe.epochs=20)
sims() {
  local bandwidths="log 30 600"; [ $data = mnist ] && bandwidths="log 3 100"
  search $data/sim-single 8 7 --retrain 3 --search "${early[@]}"
  search $data/sim-two 12 7 --retrain 3 --search "${early[@]}" "model.fourier.bandwidth=$bandwidths"
  [ $data = svhn ] || rows $data/sim-single:best "0 1 2"
}
mondeq() {  # by the published recipe, but for CIFAR-10's multi-tier one, whose published rate overfits
  [ $data = cifar10 ] && search $data/mondeq-multi 3 7 --search recipe.batch_size=128 \
    "recipe.learning_rate=listed 1e-3 2e-3 4e-3" recipe.schedule=step recipe.step_size=10 recipe.epochs=20
  for kind in multi single; do rows $data/mondeq-$kind 0 --from "$R/searches/$data-mondeq-$kind"; done
}
for models in ${MODELS:-sims mondeq}; do
  for data in "$@"; do ready $data; $models; done
done
echo finished
