#!/usr/bin/env python3
"""Checks the include rules of docs/design.md, section 3, and the length of files.

usage: layering.py [root of the project]

The order of the layers is read from the line "Order: a, b < c < d." of docs/design.md.
"""

import pathlib
import re
import sys

MAX_LINES = 500
OPT_IN = {"cuda", "nccl", "mpi", "kokkos", "torch", "thrust", "checkpoint", "plan"}
# Standard headers have no extension; these are what the core may use of the system besides.
SYSTEM_HEADERS = {"immintrin.h", "arm_neon.h", "stdlib.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
include = root / "include"
errors = []


def read_order():
    """Layer name -> rank, lowest first; the umbrella is above everything."""
    text = (root / "docs/design.md").read_text()
    line = re.search(r"^Order: (.*?)\.$", text, re.MULTILINE)
    if not line:
        sys.exit('docs/design.md has no line "Order: a, b < c." that gives the order of the layers')
    tiers = [tier.split(",") for tier in line.group(1).split("<")]
    ranks = {name.strip(): rank for rank, tier in enumerate(tiers) for name in tier}
    ranks["tessera"] = len(tiers)
    return ranks


def layer(header):
    """`backend/host.hpp` -> `backend`; `shard.hpp` -> `shard`."""
    return header.split("/")[0].removesuffix(".hpp").removesuffix(".cuh")


def check_includes(header, text, ranks, headers):
    """Reports what `header` may not include; returns the public headers that it does include."""
    found = set()
    own = layer(header)
    for delimiter, name in INCLUDE.findall(text):
        if name.startswith("tessera/"):
            name = name.removeprefix("tessera/")
            found.add(name)
            if name not in headers:
                errors.append(f"{header}: includes {name}, which does not exist")
            elif layer(name) in OPT_IN and own not in OPT_IN:
                errors.append(f"{header}: includes {name}, which needs more than the standard library")
            elif own not in OPT_IN and ranks.get(layer(name), 0) > ranks[own]:
                errors.append(f"{header}: layer {own} includes {name} of a higher layer")
        elif delimiter == '"':
            errors.append(f'{header}: include "{name}" by its whole path, tessera/...')
        elif own not in OPT_IN and ("." in name or "/" in name) and name not in SYSTEM_HEADERS:
            errors.append(f"{header}: includes <{name}>; the core needs only the standard library")
    return found


def check_cycles(graph):
    done, path = set(), []

    def visit(header):
        if header in path:
            errors.append("a circle of includes: " + " -> ".join(path[path.index(header):] + [header]))
        elif header not in done:
            path.append(header)
            for other in sorted(graph.get(header, ())):
                visit(other)
            done.add(path.pop())

    for header in sorted(graph):
        visit(header)


def reachable(graph, start):
    seen, open_ = set(), [start]
    while open_:
        header = open_.pop()
        if header not in seen:
            seen.add(header)
            open_.extend(graph.get(header, ()))
    return seen


def main():
    ranks = read_order()
    base = include / "tessera"
    headers = {
        str(path.relative_to(base)): path.read_text()
        for path in sorted(base.rglob("*"))
        if path.suffix in {".hpp", ".cuh"}
    }
    graph = {}
    for header, text in headers.items():
        if layer(header) not in ranks and layer(header) not in OPT_IN:
            errors.append(f"{header}: {layer(header)} is no layer of docs/design.md, section 3")
            continue
        graph[header] = check_includes(header, text, ranks, headers)
        if "#pragma once" not in text:
            errors.append(f"{header}: no #pragma once")
    check_cycles(graph)

    core = {header for header in headers if layer(header) not in OPT_IN}
    for header in sorted(core - reachable(graph, "tessera.hpp")):
        errors.append(f"{header}: not reached from tessera.hpp, which is all of the core")

    for folder in ("include", "tests", "examples", "benchmarks"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".hpp", ".cuh", ".cpp", ".cu", ".h", ".py"}:
                lines = path.read_text().count("\n")
                if lines > MAX_LINES:
                    errors.append(f"{path.relative_to(root)}: {lines} lines, more than {MAX_LINES}")

    for error in errors:
        print(error)
    print(f"{len(headers)} headers, {len(errors)} errors")
    return 1 if errors else 0


sys.exit(main())
