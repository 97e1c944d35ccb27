#!/bin/bash
# Table 2's searches, each `koopsim tune`: where the paper's whole search of CIFAR-10 found its best trials is where these
# look: small batches, a large rate, an early drop. About 3 minutes each on an H200; a folder that has a result is left out.
#   KOOPSIM_DATA=... benchmarks/table2.sh FOLDER
set -eu
tune() { [ -e "$1/result.json" ] || python -m koopsim tune "$2" --out "$1" --trials "$3" --grace "$4" --retrain 3 "${@:5}"; }
early=(--search batch_size=128 "learning_rate=log 1.5e-3 6e-3" schedule=step step_size=5 epochs=20)
wide=(schedule=step step_size=5,10 epochs=20 batch_size=64,128,256)
two=(--confirm 4 --confirm-seeds 2 --search "${wide[@]}" "learning_rate=log 1.5e-3 8e-3" "bandwidth=log 50 600")
listed=("learning_rate=listed 1e-3 2e-3 4e-3 1e-2 2e-3 4e-3" "step_size=listed 10 10 10 10 5 5")
tune "$1/cifar10-sim-single" cifar10/sim-single 200 1  # the paper's: 8 minutes
tune "$1/cifar10-sim-single-wide" cifar10/sim-single 32 12 --confirm 4 --search "${wide[@]}" "learning_rate=log 1e-3 2e-2"
tune "$1/cifar10-sim-two" cifar10/sim-two 24 12 "${two[@]}"
for kind in single multi; do
  tune "$1/cifar10-mondeq-$kind" cifar10/mondeq-$kind 6 12 --search batch_size=128 schedule=step epochs=20 "${listed[@]}"
done
tune "$1/svhn-sim-single" svhn/sim-single 8 7 "${early[@]}"
tune "$1/svhn-sim-two" svhn/sim-two 16 12 "${two[@]}"
tune "$1/mnist-sim-single" mnist/sim-single 8 7 "${early[@]}"
tune "$1/mnist-sim-two" mnist/sim-two 12 7 "${early[@]}" "bandwidth=log 3 100"
