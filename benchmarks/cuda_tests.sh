#!/bin/bash
# The tests that have something to say on CUDA, in six processes at once: about a minute on an H200.
export PYTHONPATH=src
LOGS=$(mktemp -d)
one() { timeout 280 python -m pytest -o addopts= -q --tb=short -p no:cacheprovider "${@:2}" > "$LOGS/$1" 2>&1; }
one a tests/nn/kernels/test_tail_kernels.py tests/nn/test_cross_entropy.py &
one b tests/nn/kernels/test_tcn_kernels.py tests/nn/kernels/test_weight_norm_kernels.py tests/nn/test_flat.py tests/nn/kernels/test_bias_relu_kernels.py &
one c tests/nn/kernels/test_norm_kernels.py tests/nn/test_padding.py tests/nn/test_fuse.py &
one d tests/nn/kernels/test_adam_kernels.py tests/train/test_step.py tests/train/test_population.py &
one e tests/search/test_stack_kernels.py tests/search/test_stack.py tests/search/test_stacked_pictures.py tests/tasks/test_image_regression.py &
one f tests/implicit/test_cuda.py tests/implicit/test_monotone_cuda.py tests/implicit/kernels/test_monotone_kernels.py &
wait
for log in "$LOGS"/*; do grep "^E  \|^FAILED\|^ERROR\|^tests.*: in \| passed\| failed" "$log" | cut -c1-400; done
