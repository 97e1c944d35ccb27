#!/bin/bash
# A first look at a GPU, about five minutes: the CUDA tests, where the time of each training step goes, whether processes
# overlap under MPS. Needs no data set.
#   benchmarks/check_gpu.sh PICTURES OUT
set -u
PICTURES=$1 OUT=$2
export PYTHONPATH=src PYTHONUNBUFFERED=1
mkdir -p "$OUT"
part() { echo "== $1 ($(date +%T))"; shift; timeout "$@" 2>&1; }
random=$OUT/random.npz
python -c "
import numpy as np
r = np.random.default_rng(0)
np.savez('$random', x_train=r.integers(0, 256, (50000, 32, 32, 3), dtype=np.uint8), y_train=r.integers(0, 10, 50000),
         x_test=r.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8), y_test=r.integers(0, 10, 1000))"
part tests 290 python benchmarks/cuda_tests.py --out "$OUT/cuda-tests.json"
part copy 40 python benchmarks/copy_memory_steps.py --models copy/sim-single --batches 1 --modes captured --profile
part cifar 60 python benchmarks/classification.py speed --data "$random" --batch 512 64 --repeats 3 --profile
part mondeq 60 python benchmarks/classification.py speed --presets cifar10/mondeq-single cifar10/mondeq-multi --batch 128 \
  --data "$random" --images 12800 --precision tf32 --repeats 1
part pictures 60 python benchmarks/image_regression.py --sets "$PICTURES/natural16" --stages timing --precisions bf16 \
  --out "$OUT"
part stack 70 python benchmarks/search_throughput.py --stacks 128 256 --profile
four() {
  for i in 1 2 3 4; do
    python benchmarks/classification.py speed --data "$random" --batch 64 --repeats 4 & done; wait
}
export -f four; export random
part four-processes 60 bash -c four
nvidia-cuda-mps-control -d && part four-under-mps 60 bash -c four
echo quit | nvidia-cuda-mps-control
echo "finished $(date +%T)"
