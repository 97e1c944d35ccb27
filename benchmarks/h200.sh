#!/bin/bash
# What the README says of an H200, by the verbs; each line can be given alone, and again. Minutes on an H200 beside it.
#   KOOPSIM_DATA=... PICTURES=... benchmarks/h200.sh RESULTS
set -eu
R=$1; k() { python -m koopsim "$@"; }
b() { python "benchmarks/$1.py" "${@:2}"; }
b speed epoch copy/sim-single copy/sim-two --batches 1 20 --epochs 3 --precision float32 --out "$R/copy-steps.json"     # 1
b speed epoch cifar10/sim-single --batches 512 64 --out "$R/classification-steps.json"                                  # 1
b speed epoch cifar10/mondeq-single cifar10/mondeq-multi --batches 128 --precision tf32 --out "$R/mondeq-steps.json"    # 2
b speed pictures "$PICTURES/natural16" --precisions bf16 tf32 --out "$R/image-timing.json"                              # 1
b speed stack --out "$R/search-stack.json"                                                                              # 1
b time_to_accuracy --out "$R/time-to-accuracy.json"                                                                     # 2
for p in bf16 float32; do k bench --precision $p --out "$R/bench-$p"; done                                              # 8
for m in copy/sim-single copy/sim-two; do k tune $m --out "$R/searches/${m/\//-}"; done                                 # 4
benchmarks/table2.sh "$R/searches"                                                                                      # 30
k reproduce table2 --out "$R/table2"                                                                                    # 20
k reproduce table3 figure5 --natural "$PICTURES/natural16" --text "$PICTURES/text16" --out "$R/table3"                  # 5
for s in natural16 text16; do k tune image/sim-rff --per-picture --task.pictures "$PICTURES/$s" --out "$R/rff-$s"; done # 5
