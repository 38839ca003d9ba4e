#!/usr/bin/env python3
"""Trains the GPT on the GPU by every strategy and schedule, and compares the bits.

usage: cuda_same_bits.py PATH_OF_GPT_CUDA

Equal parameters and moments are wanted at each number of in-process ranks; planned and measured
bytes must be the same numbers.
"""
import json
import os
import subprocess
import sys
import tempfile

VARIANTS = [
    [],
    ["--strategy", "replicate"],
    ["--strategy", "zero1"],
    ["--strategy", "zero2"],
    ["--strategy", "zero3-keep"],
    ["--prefetch-depth", "0"],
    ["--prefetch-depth", "3"],
    ["--bucket-bytes", "65536"],
    ["--bucket-bytes", "100000000"],
    ["--schedule", "sequential"],
    ["--recompute"],
]


def there_is_a_gpu():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        return False


def main():
    if not there_is_a_gpu():
        print("there is no GPU: nothing was compared")
        return 1 if os.environ.get("TESSERA_GPU_REQUIRED") else 77
    failures = 0
    for precision in ("fp32", "bf16"):
        for ranks in (1, 2, 3, 4):
            digests = set()
            for variant in VARIANTS:
                with tempfile.NamedTemporaryFile(suffix=".json") as file:
                    command = [sys.argv[1], "--ranks", str(ranks), "--steps", "5", "--layers", "3",
                               "--batch", "12", "--width", "64", "--sample", "0", "--clip", "0.5",
                               "--precision", precision, "--json", file.name] + variant
                    run = subprocess.run(command, capture_output=True, text=True)
                    if run.returncode != 0:
                        print(" ".join(command), run.stdout[-500:], run.stderr[-500:], sep="\n")
                        return 1
                    result = json.load(open(file.name))
                digests.add((result["params_digest"], result["moments_digest"]))
                if result["planned_bytes"] != result["peak_bytes"]:
                    print("planned", result["planned_bytes"], "measured", result["peak_bytes"], variant)
                    failures += 1
            print(precision, ranks, "ranks:", len(digests), "distinct of", len(VARIANTS))
            failures += len(digests) != 1
    return 1 if failures else 0


sys.exit(main())
