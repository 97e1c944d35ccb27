#!/bin/bash
# What the README says of an H200, part by part; one part after the other, for kernels that fill the chip starve small ones
# beside them. Results go to RESULTS; a part that is done is left out, one that was cut off goes on where it can, so the
# script can be given again. Minutes on an H200: see each part.
#   KOOPSIM_DATA=... benchmarks/h200.sh PICTURES RESULTS [part ...]
set -u
PICTURES=$1 R=$2; shift 2
mkdir -p "$R/log"
export PYTHONPATH=src:${PEERS:-} PYTHONUNBUFFERED=1
part() {  # name, most seconds, command...: its output in a log of its own
  local name=$1 limit=$2; shift 2
  [ -e "$R/log/$name.done" ] && return
  echo "$(date +%T) $name"
  if timeout -s INT -k 20 "$limit" "$@" > "$R/log/$name.log" 2>&1; then touch "$R/log/$name.done"; fi
  echo "$(date +%T) $name ended: $(tail -n 1 "$R/log/$name.log" | cut -c1-200)"
}
bench() { part "bench-$1-$2" "$3" python benchmarks/bench_cuda.py "$1" --precision "$2" --out "$R/bench-$2.json"; }
sets="$PICTURES/natural16 $PICTURES/text16"
halving="--rungs 600 1200 2000 --keep 0.3"  # a first rung at 200 chose large rates
pictures() {  # name, most seconds, models and options: searched where a number of trials is given, then 2,000 steps
  part "pictures-$1" "$2" python benchmarks/image_regression.py --sets $sets $halving --out "$R" --minutes 20 "${@:3}"
}

steps() {  # 2 minutes
  part copy-steps 60 python benchmarks/copy_memory_steps.py --models copy/sim-single copy/sim-two --modes captured \
    --profile --out "$R/copy-steps.json"
  part stack 60 python benchmarks/search_throughput.py --stacks 1 16 64 128 256 --profile --out "$R/search-stack.json"
  part cifar-speed 40 python benchmarks/classification.py speed --batch 512 64 --profile --out "$R/classification-steps.json"
  part mondeq-speed 60 python benchmarks/classification.py speed --presets cifar10/mondeq-single cifar10/mondeq-multi \
    --batch 128 --precision tf32 --images 12800 --profile --out "$R/mondeq-steps.json"
  part accuracy 90 python benchmarks/time_to_accuracy.py --out "$R/time-to-accuracy.json"
}
side_by_side() {  # 4 minutes
  bench fuse bf16 60; bench inference bf16 90; bench solver float32 60; bench stack float32 60; bench pictures bf16 60
  bench capture bf16 60; bench inference float32 90; bench growth float32 120; bench train float32 200
}
copy_search() { part search-copy 420 python benchmarks/search_run.py copy/sim-single copy/sim-two --out "$R/searches" \
  --retrain 1; }  # 4 minutes
cifar_search() { part search-cifar10 900 python benchmarks/search_run.py cifar10/sim-single --out "$R/searches" \
  --retrain 3; }  # 8 minutes
image_timing() { part image-timing 90 python benchmarks/image_regression.py --sets "$PICTURES/natural16" --stages timing \
  --precisions fp16 bf16 tf32 --out "$R"; }  # 1 minute
table3() {  # 2 minutes; SIM (RFF only) has the settings of the search that RESULTS holds
  pictures paper 120 --models tancik sim-rff --stages final
  pictures best 60 --models sim-rff --stages final --average 0.995 --suffix=-best
}
searched() { pictures rff 240 --models sim-rff --stages search --trials 12; }  # 3 minutes; table3 takes what it finds
sim_single() { pictures single 240 --models sim-single --stages final --precision bf16; }  # 2 minutes
sim_two() { pictures two 400 --models sim-two --stages search final --trials 12; }  # 5 minutes
figure4() { part figure4 120 python benchmarks/image_regression.py --sets photographs text --pictures 2 \
  --stages final --out "$R/figure4" --draw 0 1 --minutes 2; }  # half a minute, with the presets' settings
table2_mondeq() { MODELS=mondeq part table2-mondeq 900 benchmarks/table2.sh "$R" cifar10 svhn mnist; }  # 11 minutes
table2_sims() {  # 10 minutes: two series beside each other, for neither fills the chip
  MODELS=sims part table2-cifar10 900 benchmarks/table2.sh "$R" cifar10 &
  MODELS=sims part table2-others 900 benchmarks/table2.sh "$R" mnist svhn; wait
}

[ $# -gt 0 ] || set -- steps copy_search cifar_search side_by_side table2_mondeq \
  image_timing searched table3 sim_single sim_two figure4 table2_sims
for wanted in "$@"; do "$wanted"; done
echo "finished $(date +%T)"
