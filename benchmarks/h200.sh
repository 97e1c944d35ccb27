#!/bin/bash
# What the README says of an H200, measured in one go; about 20 minutes. Results go to RESULTS, one file or folder each;
# what is there already is left out, so the script can be given again.
#   KOOPSIM_DATA=... benchmarks/h200.sh PICTURES RESULTS
# First what must have the device to itself (times), then what need not (searches, tables), side by side under MPS.
# CIFAR-10 is begun as soon as KOOPSIM_DATA/cifar10.ready is there, so that copying and measuring may overlap.
set -u
PICTURES=$1 R=$2
mkdir -p "$R/log"
export PYTHONPATH=src:${PEERS:-} PYTHONUNBUFFERED=1
part() {  # name, seconds, command...: its output in a log of its own
  local name=$1 limit=$2; shift 2
  [ -e "$R/log/$name.done" ] && return
  echo "$(date +%T) $name"
  timeout "$limit" "$@" > "$R/log/$name.log" 2>&1 && touch "$R/log/$name.done"
  echo "$(date +%T) $name ended: $?"
}
bench() { part "bench-$1-$2" "$3" python benchmarks/bench_cuda.py ${4:-$1} --precision "$2" --out "$R/bench-$2.json"; }

# ---- alone
part copy-steps 60 python benchmarks/copy_memory_steps.py --models copy/sim-single copy/sim-two --modes captured \
  --profile --out "$R/copy-steps.json"
part stack 60 python benchmarks/search_throughput.py --stacks 1 16 64 128 256 --profile --out "$R/search-stack.json"
part image-timing 60 python benchmarks/image_regression.py --sets "$PICTURES/natural16" --stages timing \
  --precisions bf16 tf32 --out "$R"
bench some float32 60 "train capture inference fuse stack pictures"
bench some bf16 60 "train capture inference fuse pictures"
bench solver float32 60
until [ -e "$KOOPSIM_DATA/cifar10.ready" ]; do sleep 0.2; done
part cifar-speed 40 python benchmarks/classification.py speed --batch 512 64 --profile --out "$R/classification-steps.json"
part accuracy 90 python benchmarks/time_to_accuracy.py --out "$R/time-to-accuracy.json"
[ -n "${ALONE:-}" ] && exit

# ---- side by side
nvidia-cuda-mps-control -d
(part search-cifar10 1100 python benchmarks/search_run.py cifar10/sim-single --out "$R/searches" --retrain 3) &
halving="--rungs 200 700 2000 --keep 0.3 --stages search final"
(part images-rff 400 python benchmarks/image_regression.py --sets "$PICTURES/natural16" "$PICTURES/text16" $halving \
   --models tancik sim-rff --trials 24 --out "$R" --minutes 6
 part images-sim 700 python benchmarks/image_regression.py --sets "$PICTURES/natural16" "$PICTURES/text16" $halving \
   --models sim-single sim-two --trials 16 --out "$R" --minutes 11
 part figure4 120 python benchmarks/image_regression.py --sets photographs text --pictures 2 $halving \
   --trials 12 --out "$R/figure4" --draw 0 1 --minutes 2) &
(part search-copy 600 python benchmarks/search_run.py copy/sim-single copy/sim-two --out "$R/searches" --retrain 1
 part precision 120 python benchmarks/image_regression.py --sets "$PICTURES/natural16" "$PICTURES/text16" \
   --stages precision --precision-pictures 4 --out "$R" --minutes 2) &
(part mondeq 1100 python benchmarks/classification.py train cifar10/mondeq-single cifar10/mondeq-multi --seeds 0 \
   --runs "$R") &
wait
bench growth float32 120
echo quit | nvidia-cuda-mps-control
echo "finished $(date +%T)"
