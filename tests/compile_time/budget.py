#!/usr/bin/env python3
"""Measures what the headers cost to compile, and fails if it is more than budget.json allows.

Times are processor seconds of the compiler divided by those of calibration.cpp, a unit that uses
the standard library only, measured in the same run: so a slow or busy machine changes little.

umbrella_ratio, umbrella_peak_kib: an empty unit that includes tessera/tessera.hpp.
two_policies_ratio: a unit that instantiates two policies, and so the engine.
policy_ratio: what each further instantiated policy adds (slope over 2, 4 and 8 policies).
policy_peak_kib: peak memory with 8 policies.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
COUNTS = (2, 4, 8)
POLICIES = [
    f"{strategy}, tessera::OnDevice, tessera::{precision}"
    for precision in ("Bf16", "Fp32")
    for strategy in ("tessera::Zero3<>", "tessera::Zero2", "tessera::Zero1", "tessera::Replicate")
]


def compile_once(compiler, include, source):
    """(processor seconds, peak KiB) of one compilation."""
    command = [compiler, "-std=c++20", "-O1", f"-I{include}", "-c", source, "-o", os.devnull]
    child = subprocess.Popen(command, env=dict(os.environ, CCACHE_DISABLE="1"))
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"does not compile: {' '.join(map(str, command))}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def compile_best(compiler, include, source, runs=3):
    results = [compile_once(compiler, include, source) for _ in range(runs)]
    return min(seconds for seconds, _ in results), max(peak for _, peak in results)


def slope(xs, ys):
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys))
    return above / sum((x - mean_x) ** 2 for x in xs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", required=True)
    arguments = parser.parse_args()
    budget = json.loads((HERE / "budget.json").read_text())

    with tempfile.TemporaryDirectory() as folder:

        def measure(name, text):
            source = pathlib.Path(folder, name + ".cpp")
            source.write_text("#include <tessera/tessera.hpp>\n" + text)
            return compile_best(arguments.compiler, arguments.include, source)

        unit, unit_peak = compile_best(arguments.compiler, arguments.include, HERE / "calibration.cpp")
        umbrella, umbrella_peak = measure("umbrella", "")
        policies = {
            count: measure(
                f"policies_{count}",
                "".join(f"template class tessera::Shard<{p}>;\n" for p in POLICIES[:count]),
            )
            for count in COUNTS
        }
    per_policy = slope(COUNTS, [policies[count][0] for count in COUNTS])

    print(f"calibration        {unit:6.2f} s {unit_peak:9d} KiB")
    print(f"umbrella           {umbrella:6.2f} s {umbrella_peak:9d} KiB")
    for count, (seconds, peak) in policies.items():
        print(f"{count} policies         {seconds:6.2f} s {peak:9d} KiB")
    print(f"each policy        {per_policy:6.2f} s")

    measured = {
        "umbrella_ratio": umbrella / unit,
        "umbrella_peak_kib": umbrella_peak,
        "two_policies_ratio": policies[COUNTS[0]][0] / unit,
        "policy_ratio": per_policy / unit,
        "policy_peak_kib": policies[COUNTS[-1]][1],
    }
    exceeded = [name for name in budget if measured[name] > budget[name]]
    for name, value in measured.items():
        verdict = "EXCEEDED" if name in exceeded else "ok"
        print(f"{name:18} {value:12.2f} of {budget[name]:10} {verdict}")
    return 1 if exceeded else 0


sys.exit(main())
