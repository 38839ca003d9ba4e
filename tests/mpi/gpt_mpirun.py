#!/usr/bin/env python3
"""examples/gpt under mpirun trains to the bits of in-process ranks.

usage: gpt_mpirun.py GPT MPIEXEC FLAG
"""

import json
import pathlib
import subprocess
import sys
import tempfile

gpt, mpiexec, flag = sys.argv[1:4]
JOB = ["--steps", "3", "--batch", "8", "--context", "32", "--layers", "2", "--heads", "2", "--width",
       "32", "--sample", "0"]
failures = 0
with tempfile.TemporaryDirectory() as folder:
    def run(name, command):
        path = pathlib.Path(folder) / name
        done = subprocess.run([*command, *JOB, "--json", str(path)], capture_output=True, text=True,
                              timeout=120, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(path.read_text())

    for strategy, mesh in (("zero3", []), ("replicate", []),
                           ("zero3", ["--mesh", "shard=2,tensor=2", "--sequence-parallel"])):
        options = ["--strategy", strategy, "--precision", "bf16" if strategy == "zero3" else "fp32"]
        threads = run("threads", [gpt, *(mesh or ["--ranks", "4"]), *options])
        processes = run("processes", [mpiexec, flag, "4", gpt, *mesh, *options])
        for key in ("params_digest", "moments_digest", "last_loss", "val_loss", "planned_bytes",
                    "peak_bytes", "ranks", "collectives"):
            if threads[key] != processes[key]:
                print(f"{strategy}: {key}: {threads[key]} by threads, {processes[key]} by processes")
                failures += 1
    other = subprocess.run([mpiexec, flag, "2", gpt, "--mesh", "tensor=3"], capture_output=True,
                           text=True, timeout=60, check=False)
    if other.returncode == 0 or "mpirun started 2 processes" not in other.stderr + other.stdout:
        print("--mesh tensor=3 under two processes was not refused:", other.returncode, other.stderr)
        failures += 1
    wrong = subprocess.run([mpiexec, flag, "2", gpt, "--ranks", "3"], capture_output=True, text=True,
                           timeout=60, check=False)
    if wrong.returncode == 0 or "mpirun started 2 processes" not in wrong.stderr + wrong.stdout:
        print("--ranks 3 under two processes was not refused:", wrong.returncode, wrong.stderr)
        failures += 1
    # What only rank 0 finds wrong must not leave the others waiting.
    bad = subprocess.run([mpiexec, flag, "2", gpt, *JOB, "--json", "/nonexistent/x.json"],
                         capture_output=True, text=True, timeout=60, check=False)
    if bad.returncode == 0 or "cannot write to /nonexistent/x.json" not in bad.stderr + bad.stdout:
        print("a file that cannot be written was not refused:", bad.returncode, bad.stderr)
        failures += 1
print(f"{failures} failures")
sys.exit(failures != 0)
