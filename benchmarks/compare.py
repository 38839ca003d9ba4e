#!/usr/bin/env python3
"""Times examples/llama and its peers in turn on this machine's GPUs, and lays them side by side.

    ./dev gpu-bench compare [--quick] [--configs 1b,8b] [--only REGEX] [--seconds N]

Rows run in order of importance, ours and the peers alternating, until --seconds are over; a row
that fails says why in its cell. Everything is written after each run to --into: compare.json (each
run with its command), compare.md, compare.svg, curves.svg and the rows' output in logs/. Another
call with --previous compare.json goes on where one ended. --list shows the commands; --table FILE
writes table and pictures of a compare.json again; neither needs a GPU.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from comparison import report, rows  # noqa: E402

LEAST_SECONDS = 25  # that a row is begun with


def parse(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--program", default="build/gpu/examples/llama/llama")
    p.add_argument("--into", default="build/gpu/results/compare", help="folder of the results")
    p.add_argument("--work", default="build/gpu/compare",
                   help="folder of what is kept for later calls: compiled kernels, tuned products")
    p.add_argument("--gpus", type=int, default=0, help="0: all of this machine")
    p.add_argument("--quick", action="store_true", help="few steps of the first rows, once")
    p.add_argument("--configs", default="", help="of " + ", ".join(rows.SIZES))
    p.add_argument("--only", default="", metavar="REGEX", help='searched in "8b/fsdp2 tuned"')
    p.add_argument("--seconds", type=float, default=3600, help="for everything")
    p.add_argument("--row-seconds", type=float, default=170, help="for a run, at most")
    p.add_argument("--rounds", type=int, default=2, help="of the rows that matter most")
    p.add_argument("--steps", type=int, default=0, help="timed steps (20; quick: 8)")
    p.add_argument("--precision", default="",
                   help="of ours (split-bf16-sum32 where the program knows it, else bf16)")
    p.add_argument("--text", default="", help="for curves (default: this project's own)")
    p.add_argument("--wheels", default=".gpu/wheels", help="packages that this machine lacks")
    p.add_argument("--previous", default="", help="compare.json to go on from")
    p.add_argument("--list", action="store_true", help="the commands, in their order")
    p.add_argument("--table", default="", metavar="FILE", help="of this compare.json")
    a = p.parse_args(arguments)
    a.configs = [name for name in a.configs.split(",") if name]
    for name in a.configs:
        if name not in rows.SIZES:
            p.error(f"--configs takes {', '.join(rows.SIZES)}, not {name}")
    try:
        a.only = re.compile(a.only) if a.only else None
    except re.error as error:
        p.error(f"--only: {error}")
    a.steps = a.steps or (8 if a.quick else 20)
    return a


def results_in(path):
    """What another call wrote to compare.json."""
    try:
        results = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path} cannot be read as a comparison's results: {error}")
    if not isinstance(results, dict) or "runs" not in results:
        sys.exit(f"{path} holds no comparison's results")
    return results


def said(command):
    """What a command prints; nothing where it cannot run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60,
                              check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def gpus_here():
    return [line for line in said(["nvidia-smi", "-L"]).splitlines() if line.startswith("GPU ")]


def unpacked(wheels, into):
    """Unpacks wheels where PYTHONPATH finds them, for machines where nothing can be installed."""
    wheels = sorted(pathlib.Path(wheels).glob("*.whl"))
    names = [wheel.name for wheel in wheels]
    done = into / "wheels.json"
    if done.exists() and json.loads(done.read_text()) == names:
        return into
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                parts = pathlib.PurePosixPath(member.filename).parts
                if member.is_dir() or ".." in parts:
                    continue
                if parts[0].endswith(".data"):  # scripts go to bin, the rest beside the others
                    parts = ("bin", *parts[2:]) if parts[1] == "scripts" else parts[2:]
                path = into.joinpath(*parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))
                if parts[0] == "bin":
                    path.chmod(0o755)
    done.write_text(json.dumps(names))
    return into


def children(parent):
    """Ids of all processes below one, with the times they began at."""
    below = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append((int(stat.parent.name), fields[19]))
    found, ask = [], [parent]
    while ask:
        these = below.get(ask.pop(), [])
        found += these
        ask += [pid for pid, _ in these]
    return found


def ended(child):
    """Ends a process and all below it: torchrun's are in sessions of their own."""
    below = children(child.pid)
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pid, began in below:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[19] == began:
                os.kill(pid, signal.SIGKILL)
        except (OSError, IndexError):
            pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Comparison:
    def __init__(self, a, gpus):
        self.a, self.gpus = a, gpus
        self.begin = time.monotonic()
        self.into = pathlib.Path(a.into)
        self.work = pathlib.Path(a.work)
        self.runs = []
        self.skipped = []
        self.took = {}
        self.untimed = 3 if a.quick else 6
        self.precision = a.precision
        if a.previous:
            self.runs = results_in(a.previous)["runs"]

    def left(self):
        return self.a.seconds - (time.monotonic() - self.begin)

    def prepare(self):
        (self.into / "logs").mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        if not self.precision:
            known = "split-bf16-sum32" in said([self.a.program, "--help"])
            self.precision = "split-bf16-sum32" if known else "bf16"
        self.environment = dict(os.environ, **rows.ALWAYS_ENVIRONMENT)
        if self.gpus < len(gpus_here()) and "CUDA_VISIBLE_DEVICES" not in os.environ:
            self.environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(self.gpus)))
        self.for_peers = dict(self.environment)
        work = self.work.resolve()
        # What is compiled in one round is there in the next.
        for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"),
                             ("TRITON_CACHE_DIR", "triton"),
                             ("TORCH_EXTENSIONS_DIR", "extensions")):
            self.for_peers.setdefault(name, str(work / folder))
        self.for_peers.setdefault("OMP_NUM_THREADS", "8")
        self.for_peers.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.for_peers["PYTHONUNBUFFERED"] = "1"
        if pathlib.Path(self.a.wheels).is_dir():
            packages = unpacked(self.a.wheels, work / "packages")
            for name, folder in (("PYTHONPATH", packages), ("PATH", packages / "bin")):
                self.for_peers[name] = os.pathsep.join(
                    [str(folder), *filter(None, [self.for_peers.get(name)])])

    def text(self):
        if self.a.text:
            return self.a.text
        path = self.work / "text"
        if not path.exists():
            files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
                     *sorted((ROOT / "include").rglob("*.hpp"))]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(file.read_bytes() for file in files))
        return str(path)

    def weights(self):
        """The first values of tiny with bytes as tokens, as examples/llama makes them of seed 1."""
        path, program = self.work / "weights", self.work / "reference_train"
        if not path.exists():
            c = ["--layers", "4", "--dim", "512", "--ff", "1536", "--heads", "8", "--kv", "4"]
            for command in (
                    ["g++", "-std=c++20", "-O1", "-I", str(ROOT / "include"),
                     str(ROOT / "tests/llama/reference_train.cpp"), "-o", str(program)],
                    [str(program.resolve()), "--text", self.text(), *c, "--vocab", "256", "--seq",
                     "16", "--batch", "1", "--steps", "1", "--seed", "1", "--dump-weights",
                     str(path) + ".part"]):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            os.replace(str(path) + ".part", path)
        return str(path)

    def command(self, row, result, prepare=True):
        curves = rows.SIZES[row.size].get("curves", False)
        steps = 200 if curves else self.a.steps
        text = self.text() if curves and prepare else "TEXT"
        if row.ours:
            # What is tuned once a size is taken by all its rows.
            algorithms = str(self.work / f"algorithms-{row.size}.json")
            return rows.our_command(row, self.a.program, self.gpus, self.precision or "PRECISION",
                                    steps, self.untimed, result, algorithms, text)
        weights = self.weights() if curves and prepare else "WEIGHTS"
        return rows.peer_command(row, sys.executable, "benchmarks/peers/torch_llama_sharded.py",
                                 self.gpus, free_port() if prepare else "PORT", steps,
                                 self.untimed - 2, result, weights, text)

    def shown(self, command):
        """As it is kept: without where this machine has things."""
        return (shlex.join(command).replace(sys.executable, "python3")
                .replace(str(self.work), "WORK").replace(f"{ROOT}/", ""))

    def environment_of(self, row):
        if row.ours:
            return self.environment
        environment = dict(self.for_peers)
        for lock in (self.work / "extensions").rglob("lock"):  # of a run that was ended
            lock.unlink(missing_ok=True)
        if "--symm-mem" not in row.flags and "--graph" not in row.flags:
            environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # torchtitan's
        return environment

    def run(self, row, number):
        """One run; what it measured, or why not, is added to the runs."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{row.key}-{number}".lower())
        result = self.work / f"{name}.json"
        result.unlink(missing_ok=True)
        log = self.into / "logs" / f"{name}.log"
        limit = min(self.a.row_seconds, self.left())
        begin = time.monotonic()
        run = {"size": row.size, "program": row.program, "round": number, "command": row.key}
        try:
            command = self.command(row, str(result))
            run["command"] = self.shown(command)
            code, late = self.execute(command, self.environment_of(row), log, limit)
            measured = self.measured(row, result)
            if measured is None and late and limit < self.a.row_seconds:  # its fault or ours?
                self.skipped.append(f"{row.key}, round {number + 1}")
                return
            printed = log.read_text(errors="replace")[-20000:]
            run.update(measured or {"error": report.why(printed, code, late, limit)})
        except Exception as error:  # nothing that one row does ends the others
            run["error"] = f"{type(error).__name__}: {error}"[:200]
        run["seconds"] = round(time.monotonic() - begin, 1)
        self.took[row.key] = run["seconds"]
        same = (row.size, row.program, number)  # tried once more
        self.runs = [r for r in self.runs if (r["size"], r["program"], r["round"]) != same]
        self.runs.append(run)
        rate = run.get("tokens_per_s_per_gpu")
        print(f"[{time.monotonic() - self.begin:5.0f} s] {row.key}: "
              + (f"{rate:,.0f} tokens/s/GPU" if rate else run["error"])
              + f" ({run['seconds']:.0f} s)", flush=True)

    def execute(self, command, environment, log, limit):
        """(exit code, whether it took too long)"""
        with open(log, "w", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command)}\n")
            file.flush()
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                                     stdin=subprocess.DEVNULL, env=environment)
            late = False
            try:
                child.wait(timeout=limit)
            except BaseException as error:
                ended(child)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                late = True
                time.sleep(2)  # until the GPUs' memory is free again
        return child.returncode, late

    def measured(self, row, result):
        if not result.exists() or result.stat().st_size == 0:
            return None
        if row.ours:
            return report.our_run(json.loads(result.read_text()), self.gpus)
        lines = [json.loads(line) for line in result.read_text().splitlines() if line.strip()]
        good = [line for line in lines if "error" not in line]
        if good:
            return report.peer_run(good[-1])
        error = lines[0]["error"] if lines else "no result"
        return {"error": "out of memory" if "out of memory" in error.lower() else error[:160]}

    def go(self):
        done = [(run["size"], run["program"], run["round"]) for run in self.runs
                if "error" not in run]
        for row, number in rows.planned(self.gpus, self.a.rounds, self.a.quick, self.a.configs,
                                        self.a.only):
            if (row.size, row.program, number) in done:
                continue
            # What a row took before, but for a third that it had to compile, it takes again.
            needed = max(LEAST_SECONDS, 0.6 * self.took.get(row.key, 0))
            if self.left() < needed:
                self.skipped.append(f"{row.key}, round {number + 1}")
                continue
            self.run(row, number)
            self.write()
        if self.skipped:
            print(f"not run, out of time: {len(self.skipped)}: " + "; ".join(self.skipped[:12]))
        self.write()

    def write(self):
        everything = {
            "date": datetime.date.today().isoformat(),
            "machine": {"gpus": self.gpus, "names": gpus_here() or ["?"], "driver": self.driver()},
            "environment": rows.ALWAYS_ENVIRONMENT,
            "precision": self.precision,
            "runs": self.runs,
            "skipped": self.skipped,
        }
        write_all(everything, self.into)

    def driver(self):
        if not hasattr(self, "_driver"):
            query = ["nvidia-smi", "--query-gpu=driver_version,power.limit",
                     "--format=csv,noheader"]
            self._driver = (said(query).splitlines() or ["?"])[0]
        return self._driver


def described_sizes():
    said_of = {}
    for name, size in rows.SIZES.items():
        said_of[name] = f"{size['config']}, {size['batch']} x {size['seq']} tokens a GPU"
        if size.get("recompute"):
            said_of[name] += ", everything recomputed"
    return said_of


def write_all(everything, into):
    """compare.json, the table and the pictures of it."""
    into.mkdir(parents=True, exist_ok=True)
    gpus = everything["machine"]["gpus"]
    if gpus == 1:
        summary = report.summarised(everything["runs"], rows.ALONE_REFERENCES)
    else:
        summary = report.summarised(everything["runs"], rows.REFERENCES, rows.ALONE)
    # Kept once, with the runs.
    everything["rows"] = [{k: v for k, v in row.items() if k != "losses"} for row in summary]
    part = into / "compare.json.part"
    part.write_text(json.dumps(everything, indent=1) + "\n")
    os.replace(part, into / "compare.json")  # a run that is ended leaves a whole one
    title = f"Llama-3 on {gpus} GPU{'s' if gpus > 1 else ''}, {everything['date']}"
    (into / "compare.md").write_text(report.markdown(summary, title, described_sizes()))
    (into / "compare.svg").write_text(report.bars_svg(summary, title, rows.SWEPT))
    curves = [(row["program"], row["losses"][:200]) for row in summary
              if row["size"] == "curves" and row.get("losses")]
    if curves:
        (into / "curves.svg").write_text(report.curves_svg(curves, "Losses of tiny on text"))


def main():
    a = parse()
    if a.table:
        write_all(results_in(a.table), pathlib.Path(a.into))
        print((pathlib.Path(a.into) / "compare.md").read_text())
        return
    os.chdir(ROOT)
    gpus = a.gpus or len(gpus_here()) or (2 if a.list else 0)
    if a.list:
        comparison = Comparison(a, gpus)
        comparison.precision = comparison.precision or "split-bf16-sum32"
        for row, number in rows.planned(gpus, a.rounds, a.quick, a.configs, a.only):
            command = comparison.command(row, "RESULT", prepare=False)
            print(f"{row.key}, round {number + 1}: {comparison.shown(command)}")
        return
    if gpus == 0:
        sys.exit("error: this machine has no NVIDIA GPU, or no driver for it")
    if not os.access(a.program, os.X_OK):
        sys.exit(f"error: there is no {a.program}: ./dev gpu-bench compare builds it")
    comparison = Comparison(a, gpus)
    comparison.prepare()
    comparison.go()
    print((comparison.into / "compare.md").read_text())
    print(comparison.into)


if __name__ == "__main__":
    main()
