#!/bin/sh
# The benchmarks of the GPU, one after the other: gpu.sh BUILD_DIR [RESULTS_DIR]. Writes a JSON file
# each, with the commands in commands.txt.
#
#   suite      kernels beside the copy bandwidth, and whole steps by policy
#   limits     what the machine can do
#   torch      the same kernels, and attention, in PyTorch, where it is installed
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
build=$1
results=${2-$build/results}
mkdir -p "$results"
: >"$results/commands.txt"
run() {
  echo "$*" >>"$results/commands.txt"
  echo "== $*"
  "$@"
}
run "$build/benchmarks/bench_gpu" --json "$results/gpu_suite.json"
run "$build/benchmarks/limits" --json "$results/gpu_limits.json" --disk "$results"
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  run python3 "$here/peers/torch_elementwise.py" --json "$results/torch_elementwise.json"
  run python3 "$here/peers/torch_attention.py" --json "$results/torch_attention.json"
else
  echo "== no PyTorch with CUDA: its side was not run"
fi
echo "$results"
