#!/usr/bin/env bash
# What only a machine with NVIDIA GPUs can show: sets up, builds the kernels and the communicator for them, and their tests alone,
# runs these, and ends with a summary and a status that counts all of them.
#   bash tests/gpu.sh [GPU architectures, e.g. 90; default: that of the first GPU]
# Needs a CUDA toolkit (nvcc), a driver, and the network for `examples/setup.sh --cuda` where .venv lacks a wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

command -v nvidia-smi >/dev/null || { echo "gpu.sh: no nvidia-smi here: run it on a machine with an NVIDIA GPU." >&2 && exit 1; }
architectures=${1:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')}
bash examples/setup.sh --cuda
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
unset MG_FL_PREFER
cmake --preset cuda -DMGFL_CUDA_ARCHITECTURES="$architectures" -DMGFL_BUILD_EXAMPLES=OFF
cmake --build build-cuda --target test_device_cuda_kernels test_gpu_count test_mpi_nccl test_mpi_nccl_failing_rank
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
status=0
ctest --test-dir build-cuda --output-on-failure --no-tests=error -R '^device_(cuda_kernels|nccl)' || status=$?
[[ $status -eq 0 ]] && echo "gpu.sh: all passed, but what is named skipped above" || echo "gpu.sh: there are failures, see above" >&2
exit "$status"
