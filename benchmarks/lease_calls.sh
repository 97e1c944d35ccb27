#!/bin/bash
# The next lease of half an hour, call by call: what README.md's "To be measured on the next GPU" lists, in its order.
#   lease_calls.sh 1|2|3|4 [SECONDS]      there, from the repository's root; SECONDS: what the call may take at most
#   lease_calls.sh more SECONDS LANES WORDS..., steps SECONDS STEP...      other jobs of again.py, other steps of kernels_lease.sh
#   lease_load.sh PACK first|more         here, before each call; lease_home.sh FOLDER here, after each
# On another machine than before a call begins anew where `lease_load.sh PACK first` went before it, else it ends at once.
# In small, on a CPU:  ROOT=/tmp/lease OUT=/tmp/lease/o MORE="--rehearse --device cpu" DRY=--dry bash benchmarks/lease_calls.sh 1
set -eu
export ROOT=${ROOT:-/root} IN=${IN:-.gpu/in} OUT=${OUT:-${ROOT:-/root}/out} MORE=${MORE:-} PYTHON=${PYTHON:-python3}
call=$1 most=${2:-585} here=benchmarks/lease_evidence.sh
left() { echo $((most - SECONDS - $1)); }
# kernels STEP...: one after the other, in what is left of the call; none stops the next
kernels() { (. "$ROOT/env.sh" && KEEP=$ROOT/keep ALL=$(left 15) bash benchmarks/kernels_lease.sh ${DRY:-} "$@") || true; }
# evidence LANES WORDS...: again.py's jobs in the background, which are saved before the call ends and go on in the next
evidence() {
  local earlier=()
  [ -d "$ROOT/again1/again" ] || earlier=(--earlier results/unfinished/table1-table2.tar.gz) # once: then these are older
  bash "$here" begin 1 "$(left 60)" "$1" "${@:2}" "${earlier[@]}" || true
}

case $call in 1 | 2 | 3 | 4 | more | steps) ;; *) echo "1, 2, 3, 4, more or steps; not $call" && exit 2 ;; esac
if [ ! -e "$ROOT/env.sh" ] && [ -e "$IN/small.tar.xz" ]; then bash "$here" first; fi
bash "$here" part
case $call in
1) # alone; then the tests, beside trainings that want no processors
  kernels pixels
  evidence 1 table1 table3 --only copy1000-deq image-sim-rff-text-seed image-tancik-text-seed
  kernels tests racecheck
  ;;
2) # alone
  kernels variants answers deploy trained
  ;;
3) # a search wants one processor
  bash "$here" data
  evidence 1 table2 --only search-svhn-sim-two svhn-sim-two-seed
  kernels racecheck2 memcheck
  ;;
4) # two at once, for both fill the chip
  bash "$here" data
  evidence 2 table2 table3 table1 --only search-svhn-sim-two svhn-sim-two-seed svhn-mondeq-multi svhn-mondeq-single-seed2 \
    cifar10-mondeq-multi-published cifar10-mondeq-single-published-seed1 cifar10-mondeq-single-published-seed2 \
    image-sim-rff-text-seed image-tancik-text-seed copy1000-deq
  ;;
more) # LANES WORDS...
  bash "$here" data
  evidence "${@:3}"
  ;;
steps) # STEP...
  bash "$here" data
  kernels "${@:3}"
  ;;
esac
bash "$here" back "$(left 5)"
