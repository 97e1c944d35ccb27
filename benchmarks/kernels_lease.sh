#!/usr/bin/env bash
# What a lease of a GPU is to measure of the kernels, step by step: each bounded, none stops the next, and after each one
# $OUT/kernels.tar holds all there is so far.
#
#     bash benchmarks/kernels_lease.sh                       all steps, about eleven minutes
#     bash benchmarks/kernels_lease.sh phases accuracy       these steps
#     bash benchmarks/kernels_lease.sh --dry                 here, without a GPU: does every step's script start?
#     bash benchmarks/kernels_lease.sh --list                names, seconds, commands
#
# ALL=580: so many seconds for all of them together. From the repository's root, with KOOPSIM_COMMIT and OUT set; KOOPSIM_DATA
# with CIFAR-10, KOOPSIM_PAPER_CODE the paper's src: steps whose data is not there are left out, and it is said.
set -u
OUT=${OUT:-/tmp/kernels-out} KEEP=${KEEP:-/tmp/kernels-keep} PYTHON=${PYTHON:-python3}
KOOPSIM_DATA=${KOOPSIM_DATA:-$HOME/.cache/koopsim}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 KOOPSIM_DATA
mkdir -p "$OUT" "$KEEP"
ASKED=() WAY=run
for word in "$@"; do case $word in --dry) WAY=dry ;; --list) WAY=list ;; *) ASKED+=("$word") ;; esac; done

# step NAME SECONDS NEEDS COMMAND: NEEDS is a path that has to be there, or -; LESS becomes ten seconds less than there are
step() {
    local name=$1 seconds=$2 needs=$3 begun=$SECONDS status=0
    shift 3
    if [ ${#ASKED[@]} -gt 0 ] && [[ " ${ASKED[*]} " != *" $name "* ]]; then return; fi
    if [ $WAY = list ]; then echo "$name ($seconds s): $*"; return; fi
    if [ "$needs" != - ] && [ ! -e "$needs" ] && [ $WAY = run ]; then echo "$name: left out, there is no $needs"; return; fi
    if [ $WAY = dry ]; then
        local start=("$1" "$2")
        if [ "$2" = -m ]; then start=("$1" -m "$3" "$4"); elif [ "$2" = benchmarks/speed.py ]; then start+=("$3"); fi
        if [ "$2" = benchmarks/phases.py ]; then start=("$1" "$2"); fi
        timeout 120 "${start[@]}" --help > "$KEEP/$name.help" 2>&1 || status=$?
        echo "$name: --help of ${start[*]:1} ended with $status"
        return
    fi
    local left=$((${ALL:-100000} - SECONDS))
    if [ $left -lt 15 ]; then echo "$name: left out, no time"; return; fi
    if [ $left -gt "$seconds" ]; then left=$seconds; fi
    timeout $left "${@//LESS/$((left - 10))}" > "$KEEP/$name.log" 2>&1 || status=$?
    echo "$name: $status after $((SECONDS - begun)) s"
    tar cf "$OUT/kernels.part" -C "$KEEP" . && mv "$OUT/kernels.part" "$OUT/kernels.tar"
}

CIFAR=$KOOPSIM_DATA/cifar10
SHORT=(cifar10/sim-single --recipe best --recipe.schedule cosine --recipe.warm-up 150 --recipe.cutout 0 --recipe.average 0)
SHORT+=(--recipe.label-smoothing 0 --recipe.batch-size 512 --recipe.epochs 12 --recipe.learning-rate 8e-3 --recipe.shift 2)

# Quiet: nothing else on the machine
step solver 120 - "$PYTHON" benchmarks/equilibrium.py solver --device cuda --works multiscale --precision bf16 --out "$KEEP/deq-solver-multiscale.json"
step copy 90 - "$PYTHON" benchmarks/equilibrium.py solver --device cuda --works copy --out "$KEEP/deq-solver.json"
step large 110 - "$PYTHON" benchmarks/equilibrium.py solver --device cuda --works multiscale-large --out "$KEEP/deq-solver-multiscale-512.json"
step phases 90 "$CIFAR" "$PYTHON" benchmarks/phases.py "${SHORT[@]}" --ways plain late serial --out-file "$KEEP/phases.json"
step cold 100 "$CIFAR" "$PYTHON" benchmarks/phases.py "${SHORT[@]}" --ways cold in-turn plain rehearsed --out-file "$KEEP/cold.json"
step accuracy 60 "$CIFAR" "$PYTHON" benchmarks/time_to_accuracy.py --chosen results/h200/time-to-accuracy.json --out "$KEEP/time-to-accuracy-process.json"
step epochs 40 "$CIFAR" "$PYTHON" benchmarks/speed.py epoch cifar10/sim-single --batches 512 128 --epochs 3 --out "$KEEP/epochs.json"
step variants 40 - "$PYTHON" benchmarks/kernel_variants.py --kinds cluster --steps --profiles --out "$KEEP/variants.json"
step answers 25 - "$PYTHON" benchmarks/answers.py --out "$KEEP/answers.json"
step attention 40 - "$PYTHON" benchmarks/attention_turns.py --out "$KEEP/attention.json"
step pictures 45 - "$PYTHON" benchmarks/speed.py pictures text --out "$KEEP/pictures.json" --more --task.seed 11
step pixels 130 - "$PYTHON" benchmarks/pixel_turns.py --out "$KEEP/pixels.json"
step compiled 60 - "$PYTHON" benchmarks/compiled_gradients.py --seeds 2 --ways compiled looped unfused decomposed --out "$KEEP/compiled.json"
step deploy 60 - "$PYTHON" -m koopsim bench deploy --precision float32 --out "$KEEP/deploy"
step paper 100 "${KOOPSIM_PAPER_CODE:-/no/code}" "$PYTHON" benchmarks/paper_code.py "${KOOPSIM_PAPER_CODE:-none}" --turns 1 --out "$KEEP/paper-code.json"
step trained 130 - "$PYTHON" -m koopsim bench train inference --precision float32 --out "$KEEP/trained"
step aoti 60 - "$PYTHON" -m koopsim export zoo:cifar10/sim-single --format aoti --device cuda --out "$KEEP/cifar10.aoti.pt2" --json
# The machine's processors: what is timed above is over
step builds 40 - "$PYTHON" benchmarks/parallel_builds.py --turns 3 --out "$KEEP/parallel-builds.json"
step tests 330 - "$PYTHON" tools/cuda_tests.py --processes 15 --seconds LESS --out "$KEEP/cuda-tests.json"
# What kernels do with the memory that their threads share: those first that were never looked at
SHARING="tcn_kernels or conv_kernels or cell_kernels or pixels_kernels"
SHARING2="tail_kernels or small_models or direct_kernels"
step racecheck 150 - "$PYTHON" tools/cuda_tests.py --processes 8 --seconds LESS --sanitize racecheck -k "$SHARING" --out "$KEEP/racecheck.json"
step racecheck2 150 - "$PYTHON" tools/cuda_tests.py --processes 8 --seconds LESS --sanitize racecheck -k "$SHARING2" --out "$KEEP/racecheck2.json"
step memcheck 125 - "$PYTHON" tools/cuda_tests.py --processes 8 --seconds LESS --sanitize memcheck -k "$SHARING or $SHARING2" --out "$KEEP/memcheck.json"
