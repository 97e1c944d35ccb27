#!/bin/bash
# A first look at a GPU, ten minutes at most, without a data set: where the time of training steps goes, which variant of
# a kernel is the fastest, every test marked cuda, and the kernels' own tests under compute-sanitizer.
#   benchmarks/check_gpu.sh OUT [PART...]
set -u
OUT=$1; shift
PARTS=${*:-clusters tests memcheck racecheck layers}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$OUT"
part() {  # NAME SECONDS COMMAND...: its output in OUT/NAME.log, the end of it here
  [[ " $PARTS " == *" $1 "* ]] || return 0
  echo "== $1 ($(date +%T))"
  timeout "${@:2}" > "$OUT/$1.log" 2>&1 || echo "   exit $?"
  tail -n 120 "$OUT/$1.log" | cut -c1-180
}
KERNELS="kernels and not stack and not adam and not monotone and not compile"
part layers 90 python3 benchmarks/kernel_variants.py --kinds layers --out "$OUT/layers.json"
part clusters 90 python3 benchmarks/kernel_variants.py --kinds cluster --steps --out "$OUT/clusters.json"
part tests 240 python3 tools/cuda_tests.py --processes 14 --seconds 232 --out "$OUT/cuda-tests.json"
part memcheck 90 python3 tools/cuda_tests.py --processes 8 --seconds 82 --sanitize memcheck -k "$KERNELS" --out "$OUT/memcheck.json"
part racecheck 90 python3 tools/cuda_tests.py --processes 8 --seconds 82 --sanitize racecheck -k "tcn_kernels or tail_kernels" \
  --out "$OUT/racecheck.json"
