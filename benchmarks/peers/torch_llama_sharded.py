#!/usr/bin/env python3
"""Llama-3 training over GPUs in PyTorch, DeepSpeed and fairscale: the peers of examples/llama.

One process a GPU, by torchrun; rank 0 prints one JSON line, and so does a rank that fails.

    torchrun --nproc-per-node 2 torch_llama_sharded.py --mode fsdp2 --config 1b --compile
    torch_llama_sharded.py --mode single --config 1b --compile

All modes compute in bf16 and update fp32 masters by a fused AdamW after clipping to norm 1, and sum
gradients over ranks in fp32 unless --reduce-dtype says otherwise. The model and the order of
checkpointing, torch.compile (a block at a time) and fully_shard are torchtitan's. With --weights
(raw little-endian fp32, in the order of torch_llama.py) and --text, first values and batches are
those of examples/llama. --device cpu is for trying the script out.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host, and perhaps no name service

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from llama_model import (CONFIGS, FirstValues, Llama, flops_per_token, loss_of,  # noqa: E402
                         rope_tables)
from sharded_trainers import TRAINERS, compile_blocks, wrap_checkpoints  # noqa: E402
from trace_overlap import analyse  # noqa: E402

PEAK = 989e12  # dense bf16 of an H100 or H200, as in examples/llama
GIB = 2.0**30


# Ranks.


class Runtime:
    def __init__(self, a):
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.cuda = a.device == "cuda"
        self.device = torch.device("cuda", self.local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        if a.mode != "single":
            if "MASTER_ADDR" not in os.environ:
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0",
                                  WORLD_SIZE="1", LOCAL_RANK="0")
            if self.cuda:
                dist.init_process_group("nccl", device_id=self.device)
            else:
                dist.init_process_group("gloo")
        elif self.world > 1:
            raise ValueError("--mode single runs on one GPU")

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def barrier(self):
        self.wait()
        if self.world > 1:
            dist.all_reduce(torch.ones(1, device=self.device))
            self.wait()

    def gather(self, thing):
        if self.world == 1:
            return [thing]
        everyone = [None] * self.world
        dist.all_gather_object(everyone, thing)
        return everyone

    def mean(self, tensor):
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor / self.world


def captured(step, batch):
    """The step as one CUDA graph."""
    tokens, targets = (t.clone() for t in batch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    warm = []
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm.append(step(tokens, targets))
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        loss = step(tokens, targets)

    def replay(new_tokens, new_targets):
        tokens.copy_(new_tokens)
        targets.copy_(new_targets)
        graph.replay()
        return loss.clone()

    return replay


def build(a, rt):
    """(a trainer, parameters, operations a token)"""
    if a.sdpa != "auto":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        order = [SDPBackend.FLASH_ATTENTION]
        if a.sdpa == "cudnn":  # flash where cuDNN refuses
            order.insert(0, SDPBackend.CUDNN_ATTENTION)
        build.attention = sdpa_kernel(order, set_priority=True)  # for good
        build.attention.__enter__()
    c = dict(CONFIGS[a.config])
    c["layers"] = a.layers or c["layers"]
    with torch.device("meta"):
        model = Llama(c, a.vocab, a.packed)
    parameters = sum(p.numel() for p in model.parameters())
    flops = flops_per_token(c, parameters, model.tok_embeddings.weight.numel(), a.seq)
    model.rope = rope_tables(a.seq, c["dim"] // c["heads"], rt.device)
    by_block = a.mode in ("fsdp2", "ddp", "single")
    if a.ac == "full" and by_block:
        wrap_checkpoints(model)
    model.checkpoint = a.ac == "full" and a.mode == "deepspeed"
    if a.compile and by_block:
        import torch._dynamo as dynamo

        dynamo.config.optimize_ddp = False  # blocks are compiled one by one already
        compile_blocks(model)
    loss = torch.compile(loss_of) if a.compile or a.deepcompile else loss_of
    model.train()
    return TRAINERS[a.mode](a, rt, model, FirstValues(a, c, rt.device), loss), parameters, flops


def batches(a, rt):
    """Endless (tokens, targets), both [bs, seq], of this rank."""
    if not a.text:  # a few random ones over and over
        generator = torch.Generator(device=rt.device)
        generator.manual_seed(a.weights_seed + 1000 + rt.rank)
        data = torch.randint(0, a.vocab, (4, a.bs, a.seq + 1), device=rt.device,
                             generator=generator)
        kept = [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in data]
        while True:
            yield from kept
    kind = {".u16": torch.uint16, ".u32": torch.uint32}.get(os.path.splitext(a.text)[1],
                                                            torch.uint8)
    with open(a.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=kind).to(torch.int64)
    if len(text) <= a.seq or int(text.max()) >= a.vocab:
        raise ValueError(f"{a.text} is too short, or has tokens beyond the vocabulary")
    text = text.to(rt.device)
    step = 0
    while True:  # sequences follow each other through the text, and begin again where it ends
        numbers = [(step * rt.world + rt.rank) * a.bs + b for b in range(a.bs)]
        firsts = [n * a.seq % (len(text) - a.seq) for n in numbers]
        rows = torch.stack([text[f:f + a.seq + 1] for f in firsts])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        step += 1


def profiled(a, rt, one):
    from torch.profiler import ProfilerActivity, profile, schedule

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        activity = ProfilerActivity.CUDA if rt.cuda else ProfilerActivity.CPU
        with profile(activities=[activity],
                     schedule=schedule(wait=0, warmup=1, active=a.profile_steps, repeat=1),
                     on_trace_ready=lambda p: p.export_chrome_trace(path)) as p:
            for i in range(a.profile_steps + 1):
                one()
                if i in (0, a.profile_steps):
                    rt.wait()
                p.step()
                if i == 0:
                    rt.barrier()
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    return analyse(events, a.profile_steps, rt.world > 1, a.symm_mem == "copy")


# The run.


def timed(rt, one, steps):
    """Milliseconds of each step; the host does not wait in between."""
    rt.barrier()
    if not rt.cuda:
        marks = [time.perf_counter()]
        for _ in range(steps):
            one()
            marks.append(time.perf_counter())
        return [(b - a) * 1e3 for a, b in zip(marks, marks[1:])]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        one()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]


def host_times(rt, one, steps):
    """What the host takes to enqueue a step while the device has nothing else to do."""
    times = []
    for _ in range(steps):
        rt.barrier()
        begin = time.perf_counter()
        one()
        times.append((time.perf_counter() - begin) * 1e3)
    rt.wait()
    return times


def memory(rt):
    if not rt.cuda:
        return {"peak_allocated_gib": 0.0, "peak_reserved_gib": 0.0, "device_gib": 0.0}
    free, total = torch.cuda.mem_get_info()
    return {"peak_allocated_gib": round(torch.cuda.max_memory_allocated() / GIB, 3),
            "peak_reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 3),
            "device_gib": round((total - free) / GIB, 3)}


def described(a):
    """What the JSON line says of the command line."""
    usual = parse([])
    said = ("json", "mode", "config", "bs", "seq")
    flags = {name: value for name, value in sorted(vars(a).items())
             if name not in said and value != getattr(usual, name)}
    return {"mode": f"deepspeed-{a.stage}" if a.mode == "deepspeed" else a.mode,
            "config": a.config, "bs": a.bs, "seq": a.seq, "flags": flags}


def run(a, rt):
    begin = time.perf_counter()
    step, parameters, flops = build(a, rt)
    source = batches(a, rt)
    losses = []

    def one():
        losses.append(step(*next(source)))

    gc.collect()
    gc.disable()  # as torchtitan: no collection inside of steps
    if rt.cuda:
        torch.cuda.empty_cache()
    one()
    rt.wait()
    ready_s = time.perf_counter() - begin
    for _ in range(a.warmup - 1):
        one()
    rt.barrier()
    if a.graph:
        step = captured(step, next(source))
    gc.collect()
    if rt.cuda:  # what compiling and first values took is not the steps'
        if not a.graph:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        one()
    step_ms = timed(rt, one, a.steps)
    used = memory(rt)
    rt.barrier()
    curve = rt.mean(torch.stack([v.float().reshape(()) for v in losses])).tolist()
    launch = host_times(rt, one, min(5, a.steps))
    result = {**described(a), **{key: max(m[key] for m in rt.gather(used)) for key in used}}
    median = max(rt.gather(statistics.median(step_ms)))  # of the slowest rank
    rate = a.bs * a.seq * 1e3 / median
    result.update({
        "world": rt.world, "parameters": parameters, "flops_per_token": flops,
        "tokens_per_s_per_gpu": round(rate, 1),
        "mfu_pct": round(100 * rate * flops / PEAK, 2),
        "step_ms": {"median": round(median, 3), "min": round(min(step_ms), 3),
                    "max": round(max(step_ms), 3)},
        "timed_steps": len(step_ms),
        "host_launch_ms": round(statistics.median(launch), 3),
        "ready_s": round(ready_s, 1),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if rt.cuda else "cpu",
        "losses": [round(v, 6) for v in curve],
    })
    if a.profile:
        if rt.rank == 0 and a.json:  # should the profile hang
            keep(a, {**result, "profile_error": "the run ended before its profile"})
        try:
            own = profiled(a, rt, one)
        except Exception as error:  # the times above still count
            own = {"profile_error": f"{type(error).__name__}: {error}"[:300]}
        result.update(rt.gather(own)[0])
    if rt.rank == 0:
        report(a, result)


def keep(a, result):
    with open(a.json, "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def report(a, result):
    print(json.dumps(result), flush=True)
    if a.json:
        keep(a, result)


def parse(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--mode", choices=sorted(TRAINERS), default="fsdp2")
    p.add_argument("--config", choices=sorted(CONFIGS), default="1b")
    p.add_argument("--layers", type=int, default=0, help="instead of the config's")
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--bs", type=int, default=4, help="sequences of a GPU")
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--steps", type=int, default=20, help="timed steps")
    p.add_argument("--warmup", type=int, default=4, help="steps before; two more follow them")
    p.add_argument("--packed", action="store_true",
                   help="q, k, v in one product and gate, up in one, as in examples/llama")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--ac", choices=["none", "full"], default="none", help="recomputation")
    p.add_argument("--sdpa", choices=["auto", "flash", "cudnn"], default="auto")
    p.add_argument("--reduce-dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--no-reshard", dest="reshard", action="store_false",
                   help="keep parameters from forward to backward, as ZeRO-2 (fsdp2, fairscale)")
    p.add_argument("--prefetch", type=int, default=0,
                   help="fsdp2: units gathered ahead; 0: its own rule")
    p.add_argument("--no-embedding-in-backward", dest="embedding_in_backward",
                   action="store_false", help="fsdp2: backward does not gather the embedding")
    p.add_argument("--symm-mem", choices=["none", "windows", "copy"], default="none",
                   help="fsdp2: NCCL on symmetric windows; gathers by copy engines")
    p.add_argument("--graph", action="store_true", help="each step as a CUDA graph")
    p.add_argument("--ddp-bucket-mb", type=int, default=100)
    p.add_argument("--stage", type=int, choices=[1, 2, 3], default=3, help="deepspeed")
    p.add_argument("--deepcompile", action="store_true", help="deepspeed")
    p.add_argument("--ds-adam", choices=["torch", "fused"], default="torch",
                   help="deepspeed: torch's fused AdamW, or DeepSpeed's, which it compiles")
    p.add_argument("--ds-reduce-bucket", type=float, default=0, help="elements (2e8)")
    p.add_argument("--ds-prefetch-bucket", type=float, default=0,
                   help="elements (1b: 1e8; 3b, 8b: 2.5e8)")
    p.add_argument("--ds-persistence", type=float, default=0, help="elements (1e5)")
    p.add_argument("--ds-max-live", type=float, default=1e9, help="elements")
    p.add_argument("--weights", default="", help="first values: raw little-endian fp32")
    p.add_argument("--weights-seed", type=int, default=1, help="of random first values")
    p.add_argument("--text", default="", help="its bytes are the tokens; .u16 and .u32: numbers")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--weight-decay", type=float, default=0.1, help="on matrices")
    p.add_argument("--grad-clip", type=float, default=1.0, help="0: none")
    p.add_argument("--profile", action="store_true", help="how much communication is exposed")
    p.add_argument("--profile-steps", type=int, default=3)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--json", default="", help="add the line to this file; its last is the result")
    a = p.parse_args(arguments)
    if a.steps < 1 or a.warmup < 1:
        p.error("--steps and --warmup are at least 1")
    if a.mode != "fsdp2" and (a.prefetch or a.symm_mem != "none" or not a.embedding_in_backward):
        p.error("--prefetch, --symm-mem and --no-embedding-in-backward are fsdp2's")
    if a.deepcompile and a.mode != "deepspeed":
        p.error("--deepcompile is deepspeed's")
    if a.compile and a.mode == "fairscale":
        p.error("fairscale's modules cannot be compiled")
    if a.graph and (a.mode in ("deepspeed", "fairscale") or a.device == "cpu"):
        p.error("--graph is for fsdp2, ddp and single on a GPU")
    return a


def main():
    a = parse()
    try:
        rt = Runtime(a)
        run(a, rt)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        traceback.print_exc()
        report(a, {**described(a), "rank": int(os.environ.get("RANK", "0")),
                   "world": int(os.environ.get("WORLD_SIZE", "1")),
                   "error": f"{type(error).__name__}: {error}"[:400]})
        sys.stderr.flush()
        os._exit(3)  # the others may be waiting in a collective: torchrun ends them
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
