#!/usr/bin/env python3
"""Puts one fault into a copy of the headers and checks that the tests find it.

usage: mutate.py --root R --work W --compiler C --objects O --link-options L suite.json <name>

A suite:

    {
      "sources": ["tests/property/property_test.cpp"],
      "flags": ["-O1"],                   optional: given to the compiler
      "arguments": [],                    optional: given to the test program
      "environment": {},                  optional: variables of the test program
      "seconds": 60,                      optional: a run that takes longer has found the fault
      "mutations": [
        {"name": "no-scale", "file": "include/tessera/engine/reduce.hpp",
         "find": "text that occurs once", "replace": "other text"}
      ]
    }

A mutation may have settings of its own. <name> `control` changes
nothing, and the tests must pass. A fault that does not compile, or whose text is not found exactly
once, is an error of the suite.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--objects", default="")
    parser.add_argument("--link-options", default="")
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("name")
    return parser.parse_args()


def apply(mutation, work):
    path = work / mutation["file"]
    text = path.read_text()
    count = text.count(mutation["find"])
    if count != 1:
        sys.exit(f"{mutation['file']}: {count} places have the text, not 1: {mutation['find']!r}")
    path.write_text(text.replace(mutation["find"], mutation["replace"]))


def split(text):
    return [part for part in text.split(";") if part]


def main():
    arguments = parse_arguments()
    settings = json.loads(arguments.suite.read_text())
    mutations = {mutation["name"]: mutation for mutation in settings.pop("mutations")}
    mutation = None if arguments.name == "control" else mutations[arguments.name]
    defaults = {"flags": ["-O1"], "arguments": [], "environment": {}, "seconds": 60}
    settings = defaults | settings | (mutation or {})

    root, work = arguments.root, arguments.work
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(root / "include", work / "include")
    if mutation:
        apply(mutation, work)

    program = work / "test"
    command = [arguments.compiler, "-std=c++20", *settings["flags"], "-pthread"]
    command += [f"-I{work / 'include'}", f"-I{root / 'tests'}"]
    command += [str(root / source) for source in settings["sources"]]
    command += [*split(arguments.objects), *split(arguments.link_options), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(f"{arguments.name} does not compile:\n{built.stderr[:4000]}")

    try:
        run = subprocess.run([program, *settings["arguments"]], capture_output=True, text=True,
                             errors="replace", timeout=settings["seconds"],
                             env=os.environ | settings["environment"])
        result = "passed" if run.returncode == 0 else f"failed with {run.returncode}"
        output = (run.stdout + run.stderr)[-4000:]
    except subprocess.TimeoutExpired:
        result, output = f"did not end in {settings['seconds']} s", ""
    print(f"{arguments.name}: the tests {result}")
    for line in output.splitlines():
        if "ERROR" in line or "failed:" in line:
            print("  " + line.strip())

    shutil.rmtree(work, ignore_errors=True)
    if (result == "passed") != (mutation is None):
        print("but must " + ("find the fault" if mutation else "pass") + "\n" + output)
        return 1
    return 0


sys.exit(main())
