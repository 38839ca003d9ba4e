#!/bin/sh
# The step of examples/gpt on one rank beside that of a plain torch loop of the same model, on one
# thread each. They run in turns, five times, so that whatever else the machine does meets both; the
# medians and their ratio are printed (below 1: gpt is faster).
#
#   benchmarks/gpt_vs_torch.sh [path of gpt] [--precision bf16]
#
# Needs Debian's python3-torch, with OpenBLAS behind libblas.so.3.
set -eu
cd "$(dirname "$0")/.."

gpt=
case "${1:-}" in -* | "") ;; *) gpt=$1 && shift ;; esac
: "${gpt:=$(find build* -type f -name gpt -perm -u+x 2>/dev/null | head -n 1)}"
[ -n "$gpt" ] || { echo "error: there is no gpt under build*/; build it first" >&2; exit 1; }
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null ||
  { echo "error: $python cannot import torch; apt-get install python3-torch" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat README.md docs/*.md include/tessera/*.hpp include/tessera/*/*.hpp 2>/dev/null |
  head -c 150000 >"$work/text"
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

value() { # value FILE: the median step time in it
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["step_ms_median"])' "$1"
}

compare() { # compare STEPS FLAGS...: flags that both programs take
  steps=$1 && shift
  : >"$work/gpt.ms" && : >"$work/torch.ms"
  for _ in 1 2 3 4 5; do
    "$gpt" "$@" --data "$work/text" --ranks 1 --strategy replicate --steps "$steps" --sample 0 \
      --json "$work/gpt.json" >"$work/log" 2>&1 || { tail -n 1 "$work/log" >&2; exit 1; }
    value "$work/gpt.json" >>"$work/gpt.ms"
    "$python" benchmarks/peers/torch_gpt.py "$@" --data "$work/text" --rounds 1 --steps "$steps" \
      --each-step >"$work/torch.json"
    value "$work/torch.json" >>"$work/torch.ms"
  done
  "$python" - "$work/gpt.ms" "$work/torch.ms" "$*" <<'PYTHON'
import statistics, sys
ours, torch = (sorted(map(float, open(name))) for name in sys.argv[1:3])
a, b = statistics.median(ours), statistics.median(torch)
print(f"{sys.argv[3]}")
print(f"  gpt   {a:8.2f} ms a step ({ours[0]:.2f} to {ours[-1]:.2f})")
print(f"  torch {b:8.2f} ms a step ({torch[0]:.2f} to {torch[-1]:.2f})")
print(f"  ratio {a / b:8.3f}")
PYTHON
}

compare 40 --layers 4 --heads 4 --width 128 --context 64 --batch 12 "$@"
compare 8 --layers 4 --heads 6 --width 384 --context 64 --batch 12 "$@"
