#!/usr/bin/env python3
"""benchmarks/compare.py without GPUs: what it makes of results, and of programs that fail."""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest
import zipfile
from unittest import mock
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")]

import compare  # noqa: E402
import trace_overlap  # noqa: E402
from comparison import report, rows  # noqa: E402

# As they were recorded, with fewer numbers.
OURS = json.loads("""{"config": "1b", "strategy": "Zero3", "precision": "SplitMaster", "ranks": 2,
 "batch": 4, "sequence": 4096, "accumulate": 1, "steps": 26, "timed_steps": 20,
 "tokens_per_s": 132000.0, "step_ms_median": 250.0, "step_ms_min": 245.5, "step_ms_max": 262.25,
 "mfu_pct": 60.1, "flops_per_token": 9026396160.0, "exposed_ms": 1.5, "communication_ms": 60.0,
 "host_enqueue_us": 6500.0, "losses": [12.25, 11.5, 11.0], "device_bytes": 48318382080}""")
PEER = json.loads("""{"mode": "fsdp2", "config": "1b", "bs": 4, "seq": 4096,
 "flags": {"compile": true}, "peak_allocated_gib": 40.5, "peak_reserved_gib": 52.125,
 "device_gib": 54.75, "world": 2, "parameters": 1498482688, "flops_per_token": 9026396160,
 "tokens_per_s_per_gpu": 62000.5, "mfu_pct": 56.59, "step_ms": {"median": 264.256, "min": 260.0,
 "max": 290.5}, "timed_steps": 20, "host_launch_ms": 90.25, "ready_s": 40.0, "torch": "2.11.0",
 "gpu": "NVIDIA H200", "losses": [12.24, 11.4], "communication_ms": 55.5, "exposed_ms": 11.1,
 "overlap_pct": 80.0, "compute_ms": 240.0, "profiled_step_ms": 265.0, "idle_pct": 1.0}""")


def run_of(program, rate, size="1b", **more):
    return {"size": size, "program": program, "round": 0, "command": f"run {program}",
            **report.peer_run(PEER), "tokens_per_s_per_gpu": rate, **more}


def failed(program, error="out of memory", size="1b"):
    return {"size": size, "program": program, "round": 0, "command": "x", "error": error}


class Runs(unittest.TestCase):
    def test_ours(self):
        run = report.our_run(OURS, 2)
        self.assertEqual(run["tokens_per_s_per_gpu"], 65536.0)
        self.assertAlmostEqual(run["mfu_pct"], 59.81, places=2)
        self.assertEqual(run["device_gib"], 45.0)
        self.assertEqual((run["communication_ms"], run["exposed_ms"], run["overlap_pct"]),
                         (60.0, 1.5, 97.5))
        self.assertEqual(run["host_ms"], 6.5)

    def test_one_gpu_communicates_nothing(self):
        for run in (report.our_run(OURS, 1), report.peer_run(dict(PEER, world=1))):
            self.assertIsNone(run["communication_ms"])
            self.assertIsNone(run["overlap_pct"])

    def test_peer(self):
        run = report.peer_run(PEER)
        self.assertEqual((run["step_ms"], run["step_ms_max"], run["host_ms"], run["device_gib"]),
                         (264.256, 290.5, 90.25, 54.75))

    def test_overlap(self):
        self.assertIsNone(report.overlap(0, 0))
        self.assertIsNone(report.overlap(None, None))
        self.assertEqual(report.overlap(10.0, 12.0), 0.0)

    def test_why(self):
        self.assertEqual(report.why("x\ntorch.OutOfMemoryError: CUDA out of memory.", 1, False, 9),
                         "out of memory")
        self.assertEqual(report.why("", -9, True, 90), "no result within 90 s")
        self.assertEqual(report.why("llama: --spawn: unknown\nbye\n", 2, False, 9),
                         "exit 2: llama: --spawn: unknown")
        self.assertIn("it said nothing", report.why("", 1, False, 9))

    def test_trace(self):
        def event(cat, name, begin, ms, stream):
            return {"ph": "X", "cat": cat, "name": name, "ts": begin * 1e3, "dur": ms * 1e3,
                    "args": {"stream": stream}}

        events = [
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32", 0, 5, 20),  # the barrier
            event("kernel", "gemm", 10, 10, 7),
            event("kernel", "ncclDevKernel_AllGather_RING_LL", 5, 10, 20),  # half of it covered
            event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 15, 10, 21),
            event("kernel", "copy_in", 22, 1, 21),  # a side stream covers nothing
            event("cpu_op", "aten::mm", 0, 100, None),
        ]
        got = trace_overlap.analyse(events, 1, True, False)
        self.assertEqual((got["communication_ms"], got["exposed_ms"]), (20.0, 10.0))
        self.assertEqual((got["overlap_pct"], got["compute_ms"]), (50.0, 10.0))
        self.assertEqual(got["profiled_step_ms"], 20.0)
        self.assertIn("profile_error", trace_overlap.analyse([], 1, False, False))


class Tables(unittest.TestCase):
    def setUp(self):
        self.runs = [
            run_of("ours", 66000.0), run_of("fsdp2", 60000.0), run_of("fsdp2 tuned", 62000.0),
            run_of("ours", 68000.0), run_of("fsdp2", 61000.0), failed("fsdp2 tuned", "exit 1: | x"),
            run_of("deepspeed zero3", 70000.0), failed("fairscale"),
            run_of("torch alone", 71000.0), run_of("ours depth 4", 66500.0),
            run_of("ours", 11000.0, "8b"), failed("fsdp2", size="8b"),
        ]
        self.rows = report.summarised(self.runs, rows.REFERENCES, rows.ALONE)
        self.of = {(r["size"], r["program"]): r for r in self.rows}

    def test_medians_and_ratios(self):
        ours = self.of["1b", "ours"]
        self.assertEqual((ours["tokens_per_s_per_gpu"], ours["rounds"]), (67000.0, 2))
        self.assertEqual((ours["ratio"], ours["ratio_to"]), (round(67 / 62, 3), "fsdp2 tuned"))
        self.assertEqual(self.of["1b", "fsdp2 tuned"]["ratio"], 1.0)
        self.assertEqual(self.of["1b", "deepspeed zero3"]["ratio"], round(70 / 62, 3))

    def test_failures(self):
        self.assertEqual(self.of["1b", "fairscale"]["error"], "out of memory")
        self.assertEqual(self.of["1b", "fsdp2 tuned"]["failed_rounds"], ["exit 1: | x"])
        self.assertIsNone(self.of["8b", "ours"]["ratio"])  # its reference failed
        self.assertIsNone(self.of["1b", "fairscale"]["ratio"])

    def test_what_communicates_nothing_has_no_ratio(self):
        self.assertIsNone(self.of["1b", "torch alone"]["ratio"])
        self.assertEqual(self.of["1b", "torch alone"]["tokens_per_s_per_gpu"], 71000.0)

    def test_markdown(self):
        text = report.markdown(self.rows, "Llama-3", compare.described_sizes())
        self.assertIn("| ours | 67,000 (66,000-68,000) | 56.6 | 54.8 |", text)
        self.assertIn("| 1.081 | 2 |", text)
        self.assertIn("| fairscale | failed: out of memory |", text)
        self.assertIn("## 1b: 1b, 4 x 4096 tokens a GPU", text)
        widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| ours |")}
        self.assertEqual(widths, {len(report.COLUMNS) + 2})

    def test_bars(self):
        picture = ElementTree.fromstring(report.bars_svg(self.rows, "a < b & c", rows.SWEPT))
        rects = [e for e in picture.iter() if e.tag.endswith("rect")]
        shown = [r for r in self.rows if "error" not in r and r["program"] != "ours depth 4"]
        self.assertEqual(len(rects), 1 + len(shown))
        words = [e.text for e in picture.iter() if e.tag.endswith("text")]
        self.assertIn("1.08", words)
        for rect in rects[1:]:
            self.assertGreaterEqual(float(rect.get("y")), 40.0)

    def test_curves(self):
        curves = [("ours", [6.0, 5.0, 4.5]), ("peer", [6.0, 5.1, float("nan")]), ("none", [])]
        picture = ElementTree.fromstring(report.curves_svg(curves, "losses"))
        lines = [e for e in picture.iter() if e.tag.endswith("polyline")]
        self.assertEqual([len(e.get("points").split()) for e in lines], [3, 2])

    def test_nothing(self):
        ElementTree.fromstring(report.bars_svg([], "none"))
        ElementTree.fromstring(report.curves_svg([], "none"))
        self.assertEqual(report.summarised([], rows.REFERENCES), [])
        report.markdown([], "none", {})


class Plans(unittest.TestCase):
    def test_all_programs_are_known(self):
        for gpus in (1, 2):
            for sitting in rows.sittings(gpus, 2, False):
                self.assertIn(sitting.size, rows.SIZES)
                for program in sitting.programs:
                    self.assertIn(program, rows.OURS | rows.PEERS)
        self.assertLessEqual(set(rows.ALONE_REFERENCES), set(rows.PEERS))

    def test_they_alternate(self):
        plan = rows.planned(2, only=re.compile("8b/ours$|8b/fsdp2$"))
        self.assertEqual([(row.key, number) for row, number in plan],
                         [("8b/ours", 0), ("8b/fsdp2", 0), ("8b/ours", 1), ("8b/fsdp2", 1)])

    def test_choices(self):
        self.assertEqual({row.size for row, _ in rows.planned(2, sizes=["1b-small"])}, {"1b-small"})
        self.assertEqual(len(rows.planned(2, quick=True)), 4)
        alone = {row.program for row, _ in rows.planned(1)}
        self.assertIn("torch alone", alone)
        self.assertNotIn("ours sequential", alone)

    def test_commands(self):
        row = rows.Row("8b-recompute", "ours", rows.OURS["ours"])
        ours = rows.our_command(row, "llama", 2, "bf16", 20, 6, "r.json", "a", "")
        self.assertEqual(ours[:9], ["llama", "--config", "8b", "--batch", "1", "--seq", "4096",
                                    "--spawn", "2"])
        self.assertIn("--recompute", ours)
        row = rows.Row("1b", "ours split-bf16", rows.OURS["ours split-bf16"])
        self.assertEqual(rows.our_command(row, "llama", 1, "bf16", 20, 6, "r", "a", "")
                         .count("--precision"), 1)
        row = rows.Row("curves", "fsdp2", rows.PEERS["fsdp2"])
        peer = rows.peer_command(row, "python3", "s.py", 2, 1234, 200, 5, "r", "w", "t")
        self.assertEqual(peer[:5], ["python3", "-m", "torch.distributed.run", "--nproc-per-node",
                                    "2"])
        self.assertIn("--weights", peer)
        row = rows.Row("1b", "torch alone", rows.PEERS["torch alone"])
        self.assertEqual(rows.peer_command(row, "python3", "s.py", 2, 1, 9, 5, "r", "", "")[1],
                         "s.py")


class Programs(unittest.TestCase):
    """Programs that stand in for the trainers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ours = self.script("ours", "import json, sys\n"
                                "if '--help' in sys.argv: sys.exit()\n"
                                f"json.dump({OURS!r}, open(sys.argv[-1], 'w'))\n")

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return str(path)

    def compared(self, peer, *flags):
        a = compare.parse(["--program", self.ours, "--into", str(self.folder / "out"),
                           "--work", str(self.folder / "work"), "--wheels", "none",
                           "--only", "^1b/(ours|fsdp2)$", "--rounds", "1", *flags])
        comparison = compare.Comparison(a, 2)

        def command(row, python, script, gpus, port, steps, warmup, result, weights, text):
            return [peer, result]

        with mock.patch.object(rows, "peer_command", command), \
                mock.patch.object(compare, "gpus_here", lambda: ["GPU 0", "GPU 1"]), \
                contextlib.redirect_stdout(io.StringIO()):
            comparison.prepare()
            comparison.go()
        return comparison, json.loads((self.folder / "out" / "compare.json").read_text())

    def test_a_comparison(self):
        peer = self.script("peer", "import json, sys, os\n"
                           "assert os.environ['NCCL_NVLS_ENABLE'] == '0'\n"
                           f"json.dump({PEER!r}, open(sys.argv[1], 'w'))\n")
        _, everything = self.compared(peer)
        self.assertEqual([row["program"] for row in everything["rows"]], ["ours", "fsdp2"])
        self.assertEqual(everything["rows"][0]["ratio"], round(65536.0 / 62000.5, 3))
        self.assertEqual(everything["precision"], "bf16")
        self.assertNotIn(str(self.folder / "work"), everything["runs"][0]["command"])
        ElementTree.parse(self.folder / "out" / "compare.svg")
        # Another call goes on where it ended.
        again, everything = self.compared(peer, "--previous",
                                          str(self.folder / "out" / "compare.json"))
        self.assertEqual((len(everything["runs"]), again.took), (2, {}))

    def test_a_peer_that_fails(self):
        peer = self.script("peer", "import sys\nsys.exit('RuntimeError: no such thing')\n")
        _, everything = self.compared(peer)
        self.assertEqual(everything["rows"][1]["error"], "exit 1: RuntimeError: no such thing")
        self.assertNotIn("error", everything["rows"][0])
        self.assertIn("failed: exit 1", (self.folder / "out" / "compare.md").read_text())

    def test_a_peer_that_says_why(self):
        line = json.dumps({"mode": "fsdp2", "error": "OutOfMemoryError: CUDA out of memory. T"})
        peer = self.script("peer", f"import sys\nopen(sys.argv[1], 'w').write({line!r})\n"
                           "sys.exit(3)\n")
        _, everything = self.compared(peer)
        self.assertEqual(everything["rows"][1]["error"], "out of memory")

    def test_a_peer_that_hangs_in_its_profile(self):
        peer = self.script("peer", "import json, sys, time\n"
                           f"open(sys.argv[1], 'w').write(json.dumps({PEER!r}) + '\\n')\n"
                           "time.sleep(600)\n")
        _, everything = self.compared(peer, "--row-seconds", "2")
        self.assertEqual(everything["rows"][1]["tokens_per_s_per_gpu"], 62000.5)

    def test_a_peer_that_cannot_run(self):
        _, everything = self.compared(str(self.folder / "missing"))
        self.assertIn("FileNotFoundError", everything["rows"][1]["error"])

    def test_a_peer_that_hangs(self):
        # As torchrun does: its workers are in sessions of their own, and outlive it.
        peer = self.script("peer", "import subprocess, sys, time\n"
                           f"c = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                           f"open({str(self.folder / 'pid')!r}, 'w').write(str(c.pid))\n"
                           "time.sleep(600)\n")
        begin = time.monotonic()
        _, everything = self.compared(peer, "--row-seconds", "2")
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(everything["rows"][1]["error"], "no result within 2 s")
        pid = int((self.folder / "pid").read_text())
        for _ in range(50):
            stat = pathlib.Path(f"/proc/{pid}/stat")
            if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.1)
        else:
            self.fail("a worker is left")

    def test_no_time(self):
        comparison, everything = self.compared("none", "--seconds", "1")
        self.assertEqual((everything["runs"], len(comparison.skipped)), ([], 2))

    def test_wheels(self):
        wheels = self.folder / "wheels"
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "a-1-py3-none-any.whl", "w") as archive:
            archive.writestr("a/__init__.py", "")
            archive.writestr("a-1.data/scripts/tool", "#!/bin/sh\n")
            archive.writestr("a-1.data/purelib/b.py", "")
            archive.writestr("../evil", "")
        into = compare.unpacked(wheels, self.folder / "packages")
        self.assertTrue((into / "a/__init__.py").exists() and (into / "b.py").exists())
        self.assertTrue(os.access(into / "bin/tool", os.X_OK))
        self.assertFalse((self.folder / "evil").exists())
        stamp = (into / "wheels.json").stat().st_mtime_ns
        compare.unpacked(wheels, into)
        self.assertEqual((into / "wheels.json").stat().st_mtime_ns, stamp)


if __name__ == "__main__":
    unittest.main()
