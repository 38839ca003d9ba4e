#!/usr/bin/env python3
"""Checks that what must not compile does not, and that the compiler says the expected sentence.

A source holds sections and what is common to them:

    #include <tessera/tessera.hpp>
    #if defined(CASE_rvalue_tensor)
    // EXPECT: tensors are taken by lvalue
    ...
    #elif defined(CASE_other)
    // EXPECT: another sentence
    ...
    #endif

Every section is compiled alone and must fail with each of its EXPECT lines in the errors. Without
any section the source must compile: so what fails is the section, and nothing around it.
"""

import argparse
import os
import re
import subprocess
import sys

CASE = re.compile(r"^\s*#\s*(?:if|elif)\s+defined\s*\(?\s*CASE_(\w+)\s*\)?\s*$|^\s*#\s*ifdef\s+CASE_(\w+)\s*$")
EXPECT = re.compile(r"^\s*//\s*EXPECT:\s*(.+?)\s*$")


def read_cases(path):
    """Name of a case -> the sentences that its errors must contain."""
    cases, current = {}, None
    with open(path) as source:
        for number, line in enumerate(source, 1):
            if match := CASE.match(line):
                current = match.group(1) or match.group(2)
                if current in cases:
                    sys.exit(f"{path}:{number}: case {current} is there twice")
                cases[current] = []
            elif match := EXPECT.match(line):
                if current is None:
                    sys.exit(f"{path}:{number}: EXPECT outside a case")
                cases[current].append(match.group(1))
    if not cases:
        sys.exit(f"{path}: no #if defined(CASE_name)")
    for name, sentences in cases.items():
        if not sentences:
            sys.exit(f"{path}: case {name} has no // EXPECT: line")
    return cases


def compile_case(compiler, include, path, case):
    command = [compiler, "-std=c++20", "-fsyntax-only", "-fmessage-length=0", f"-I{include}", path]
    if case:
        command.insert(1, f"-DCASE_{case}")
    environment = dict(os.environ, LC_ALL="C", CCACHE_DISABLE="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def error_lines(text):
    """Only errors count: notes and the echo of the source line would quote the sentence anyway."""
    return "\n".join(line for line in text.splitlines() if re.search(r"\berror: ", line))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", action="append", required=True)
    parser.add_argument("--include", required=True)
    parser.add_argument("source")
    arguments = parser.parse_args()

    cases = read_cases(arguments.source)
    failures = 0

    def fail(what, output):
        nonlocal failures
        failures += 1
        print(f"FAILED {what}\n{output[:4000]}")

    for compiler in arguments.compiler:
        code, output = compile_case(compiler, arguments.include, arguments.source, None)
        if code != 0:
            fail(f"{compiler}: the control without a case must compile", output)
            continue
        for case, sentences in cases.items():
            code, output = compile_case(compiler, arguments.include, arguments.source, case)
            errors = error_lines(output)
            missing = [sentence for sentence in sentences if sentence not in errors]
            if code == 0:
                fail(f"{compiler}: {case} must not compile, and does", output)
            elif missing:
                fail(f"{compiler}: {case}: no error says: {missing[0]}", output)
            else:
                print(f"ok {compiler} {case}")
    print(f"{len(cases)} cases, {len(arguments.compiler)} compilers, {failures} failures")
    return 1 if failures else 0


sys.exit(main())
