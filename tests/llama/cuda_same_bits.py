#!/usr/bin/env python3
"""Runs examples/llama on a GPU in ways that must not change a bit, and compares digests and losses.

  cuda_same_bits.py PROGRAM

Exit status 77 where there is no GPU.
"""
import json
import os
import subprocess
import sys
import tempfile

MODEL = "--layers 3 --dim 256 --ff 512 --heads 4 --kv-heads 2 --vocab 256 --seq 128".split()
DOCUMENTS = "--documents --document-token 10".split()  # lines
FIXED = "--steps 12 --lr 1e-3 --deterministic --digest --quiet".split()


def run(program, folder, arguments):
    path = os.path.join(folder, "out.json")
    done = subprocess.run([program, *MODEL, *FIXED, *arguments, "--json", path],
                          capture_output=True, text=True, check=False)
    if done.returncode == 2 and "there is no GPU" in done.stderr:
        print(done.stderr)
        sys.exit(1 if os.environ.get("TESSERA_GPU_REQUIRED") else 77)
    if done.returncode != 0:
        print(" ".join(arguments), "->", done.returncode, done.stderr)
        sys.exit(1)
    with open(path) as file:
        got = json.load(file)
    return got["params_digest"], got["moments_digest"], got["losses"]


def main():
    program = sys.argv[1]
    text = ["--data", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../README.md")]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "bf16", "lean-bf16", "split-bf16", "pure-bf16"):
            common = [*text, "--precision", precision]
            groups = {
                "one rank, batch 4": [
                    ["--batch", "4"],
                    ["--batch", "4"],
                    ["--batch", "4", "--recompute", "block"],
                    ["--batch", "4", "--recompute", "elementwise"],
                    ["--batch", "4", "--graph"],
                    ["--batch", "4", "--force-collectives"],
                    ["--batch", "4", "--force-collectives", "--graph", "--prefetch-depth", "2"],
                    ["--batch", "4", "--strategy", "replicate"],
                ],
                "tied, one sequence": [
                    ["--tied", "--batch", "1"],
                    ["--tied", "--batch", "1", "--recompute", "block"],
                    ["--tied", "--batch", "1", "--graph"],
                ],
                "two micro-steps": [
                    ["--batch", "2", "--accumulate", "2"],
                    ["--batch", "2", "--accumulate", "2", "--graph"],
                    ["--batch", "2", "--accumulate", "2", "--recompute", "elementwise"],
                ],
                "documents": [
                    ["--batch", "4", *DOCUMENTS],
                    ["--batch", "4", *DOCUMENTS, "--recompute", "block"],
                    ["--batch", "4", *DOCUMENTS, "--graph"],
                    ["--batch", "4", *DOCUMENTS, "--strategy", "replicate"],
                ],
                "documents, two micro-steps": [
                    ["--batch", "2", "--accumulate", "2", *DOCUMENTS],
                    ["--batch", "2", "--accumulate", "2", *DOCUMENTS, "--graph"],
                ],
                "two ranks, batch 2 each": [
                    ["--ranks", "2", "--batch", "2", "--strategy", strategy]
                    for strategy in ("zero3", "zero3-keep", "zero2", "replicate")
                ],
            }
            for group, variants in groups.items():
                results = [run(program, folder, common + variant) for variant in variants]
                same = all(result == results[0] for result in results)
                print(f"{precision}, {group}: {len(variants)} runs,",
                      "one result" if same else "DIFFERENT", results[0][0])
                if not same:
                    failed += 1
                    for variant, result in zip(variants, results):
                        print("   ", " ".join(variant), result[0], result[1], result[2][-1])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
