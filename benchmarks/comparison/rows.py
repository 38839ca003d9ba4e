"""What is compared: sizes of models, programs with their flags, and the order they run in.

A row is a size and a program, "8b/ours" or "1b/fsdp2 tuned". A sitting is a list of rows of one
size, which run in turn, as many rounds as it says, before the next sitting begins.
"""

from dataclasses import dataclass, field

SIZES = {
    "8b": {"config": "8b", "batch": 1, "seq": 4096},
    "1b": {"config": "1b", "batch": 4, "seq": 4096},
    "1b-small": {"config": "1b", "batch": 1, "seq": 512},
    "8b-recompute": {"config": "8b", "batch": 1, "seq": 4096, "recompute": True},
    "3b": {"config": "3b", "batch": 2, "seq": 4096},
    "curves": {"config": "tiny", "batch": 4, "seq": 128, "curves": True},
}

# Flags of examples/llama besides size, precision and what all rows have. A precision is the
# command line's --precision unless it is named here.
OURS = {
    "ours": [],
    "ours bf16": ["--precision", "bf16"],
    "ours split-bf16": ["--precision", "split-bf16"],
    "ours pure-bf16": ["--precision", "pure-bf16"],
    "ours as a graph": ["--graph"],
    "ours compute alone": ["--no-collectives", "--strategy", "zero2"],
    "ours sequential": ["--sequential"],
    "ours zero2": ["--strategy", "zero2"],
    "ours zero3-keep": ["--strategy", "zero3-keep"],
    "ours replicate": ["--strategy", "replicate"],
    **{f"ours bucket {n}": ["--bucket-mib", str(n)] for n in (8, 32, 128, 512)},
    **{f"ours depth {n}": ["--prefetch-depth", str(n)] for n in (0, 2, 4)},
    **{f"ours in flight {n}": ["--reductions-in-flight", str(n)] for n in (0, 2, 4)},
    **{f"ours by {t}": ["--transport", t] for t in ("kernels", "windows", "peer")},
}

_TUNED = ["--compile", "--packed", "--sdpa", "cudnn", "--prefetch", "2",
          "--no-embedding-in-backward"]

# Flags of peers/torch_llama_sharded.py besides size.
PEERS = {
    "fsdp2": ["--mode", "fsdp2", "--compile"],
    "fsdp2 tuned": ["--mode", "fsdp2", *_TUNED],
    "fsdp2 eager": ["--mode", "fsdp2"],
    "fsdp2 windows": ["--mode", "fsdp2", *_TUNED, "--symm-mem", "windows"],
    "fsdp2 copy engines": ["--mode", "fsdp2", *_TUNED, "--symm-mem", "copy"],
    "fsdp2 as a graph": ["--mode", "fsdp2", "--compile", "--packed", "--sdpa", "cudnn", "--graph"],
    "fsdp2 zero2": ["--mode", "fsdp2", *_TUNED, "--no-reshard"],
    "fsdp2 bf16 sums": ["--mode", "fsdp2", *_TUNED, "--reduce-dtype", "bf16"],
    "ddp": ["--mode", "ddp", "--compile", "--packed", "--sdpa", "cudnn"],
    "torch alone": ["--mode", "single", "--compile", "--packed", "--sdpa", "cudnn"],
    "torch alone as a graph": ["--mode", "single", "--compile", "--packed", "--sdpa", "cudnn",
                               "--graph"],
    "deepspeed zero3": ["--mode", "deepspeed", "--stage", "3", "--sdpa", "cudnn", "--packed"],
    "deepspeed zero3 compile": ["--mode", "deepspeed", "--stage", "3", "--sdpa", "cudnn",
                                "--packed", "--compile"],
    "deepspeed zero3 deepcompile": ["--mode", "deepspeed", "--stage", "3", "--sdpa", "cudnn",
                                    "--packed", "--deepcompile"],
    "deepspeed zero3 bf16 sums": ["--mode", "deepspeed", "--stage", "3", "--sdpa", "cudnn",
                                  "--packed", "--reduce-dtype", "bf16"],
    "deepspeed zero2": ["--mode", "deepspeed", "--stage", "2", "--sdpa", "cudnn", "--packed"],
    "fairscale": ["--mode", "fairscale", "--packed", "--sdpa", "cudnn"],
}

# Ratios are to the best of these in the same size: what compiles, and sums in fp32.
REFERENCES = ("fsdp2", "fsdp2 tuned", "fsdp2 windows", "fsdp2 copy engines", "fsdp2 as a graph",
              "fsdp2 zero2")
ALONE_REFERENCES = (*REFERENCES, "torch alone", "torch alone as a graph")

# Not what the others do, so without a ratio: they communicate nothing.
ALONE = ("ours compute alone", "torch alone", "torch alone as a graph")
# Of one program with many values of an option: in the table, not in the picture.
SWEPT = tuple(name for name in OURS if name.startswith(
    ("ours bucket", "ours depth", "ours in flight", "ours by ")))

ALWAYS_ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",  # NVLink multicast stays off, for all alike
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@dataclass
class Sitting:
    size: str
    programs: list
    rounds: int = 1


@dataclass
class Row:
    size: str
    program: str
    flags: list = field(default_factory=list)

    @property
    def key(self):
        return f"{self.size}/{self.program}"

    @property
    def ours(self):
        return self.program in OURS


def sittings(gpus, rounds, quick):
    """In order of importance."""
    if gpus == 1:
        heads = ["ours", "torch alone", "fsdp2 tuned"]
        small = ["ours as a graph", "ours", "torch alone", "torch alone as a graph"]
    else:
        heads = ["ours", "fsdp2 tuned", "fsdp2"]
        small = ["ours as a graph", "ours", "fsdp2 tuned", "fsdp2 as a graph"]
    order = [Sitting("8b", heads, rounds), Sitting("1b", heads, rounds)]
    if quick:
        return [Sitting(s.size, s.programs[:2], 1) for s in order]
    order += [
        Sitting("8b", ["deepspeed zero3"]),
        Sitting("1b", ["deepspeed zero3"]),
        Sitting("1b-small", small, rounds),
        Sitting("8b-recompute", ["ours", "fsdp2 tuned"], rounds),
        Sitting("8b", ["ours compute alone"]),
        Sitting("1b", ["ours compute alone", "torch alone"]),
        Sitting("8b", ["fsdp2 windows", "fsdp2 copy engines", "ours bf16", "ours split-bf16",
                       "fsdp2 bf16 sums", "deepspeed zero3 compile"]),
        Sitting("1b", ["fsdp2 windows", "fsdp2 copy engines", "ours bf16", "ours split-bf16",
                       "fsdp2 bf16 sums", "deepspeed zero3 compile", "deepspeed zero3 deepcompile",
                       "deepspeed zero2"]),
        Sitting("1b", ["ours zero2", "fsdp2 zero2", "ours zero3-keep", "ours replicate", "ddp",
                       "fairscale"]),
        *[Sitting(size, [*[f"ours bucket {n}" for n in (8, 32, 128, 512)],
                         *[f"ours depth {n}" for n in (0, 2, 4)],
                         *[f"ours in flight {n}" for n in (0, 2, 4)],
                         *[f"ours by {t}" for t in ("kernels", "windows", "peer")],
                         "ours sequential"]) for size in ("8b", "1b")],
        Sitting("curves", ["ours", "ours bf16", "ours split-bf16", "fsdp2", "deepspeed zero3",
                           "ddp"]),
        Sitting("1b-small", ["deepspeed zero3", "deepspeed zero3 bf16 sums"]),
        Sitting("8b-recompute", ["deepspeed zero3"]),
        Sitting("3b", ["ours", "fsdp2 tuned"]),
        Sitting("1b", ["fsdp2 eager", "ours pure-bf16", "deepspeed zero3 bf16 sums"]),
    ]
    return order


def planned(gpus, rounds=2, quick=False, sizes=None, only=None):
    """[(row, round)], in the order that they run. `sizes`: names of SIZES; `only`: a compiled
    expression that is searched in a row's key."""
    several = ("ours by ", "ours compute alone", "ours in flight", "ours bucket", "ours depth",
               "fsdp2 windows", "fsdp2 copy", "ours zero", "ours replicate", "ours sequential")
    plan = []
    for sitting in sittings(gpus, rounds, quick):
        if sizes and sitting.size not in sizes:
            continue
        rows = [Row(sitting.size, program, (OURS | PEERS)[program])
                for program in sitting.programs]
        rows = [row for row in rows if only is None or only.search(row.key)]
        if gpus == 1:  # there is nothing to communicate
            rows = [row for row in rows if not row.program.startswith(several)]
        for number in range(sitting.rounds):
            plan += [(row, number) for row in rows]
    return plan


def our_command(row, program, gpus, precision, steps, untimed, result, algorithms, text):
    size = SIZES[row.size]
    command = [program, "--config", size["config"], "--batch", str(size["batch"]),
               "--seq", str(size["seq"])]
    if gpus > 1:
        command += ["--spawn", str(gpus)]
    if "--precision" not in row.flags:
        command += ["--precision", precision]
    if size.get("recompute"):
        command += ["--recompute", "block"]
    if size.get("curves"):
        command += ["--data", text, "--vocab", "256", "--lr", "1e-3", "--seed", "1"]
    if algorithms:
        command += ["--algorithms", algorithms]
    return command + row.flags + ["--steps", str(steps + untimed), "--untimed", str(untimed),
                                  "--quiet", "--json", result]


def peer_command(row, python, script, gpus, port, steps, warmup, result, weights, text):
    size = SIZES[row.size]
    alone = "single" in row.flags
    command = [python]
    if not alone:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(gpus),
                    "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command += [script, *row.flags, "--config", size["config"], "--bs", str(size["batch"]),
                "--seq", str(size["seq"])]
    if size.get("recompute"):
        command += ["--ac", "full"]
    if size.get("curves"):
        command += ["--weights", weights, "--text", text, "--vocab", "256", "--lr", "1e-3"]
    else:
        command += ["--profile"]
    return command + ["--steps", str(steps), "--warmup", str(warmup), "--json", result]
