#!/usr/bin/python3
"""The model of examples/gpt as a plain torch loop on the CPU, to measure its step time against.

Same sizes, same initial deviations, same AdamW and the same kind of batch. Debian's python3-torch
(1.13) is enough; it uses the system's BLAS, so let libblas.so.3 be OpenBLAS. Prints one JSON line.

    /usr/bin/python3 benchmarks/peers/torch_gpt.py --data FILE [--threads 1] [--width 128] ...
"""

import argparse
import json
import math
import os
import statistics
import time


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", required=True, help="any text file")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rounds", type=int, default=5, help="timed rounds; the median is reported")
    p.add_argument("--steps", type=int, default=20, help="steps in a round")
    p.add_argument("--each-step", action="store_true",
                   help="time each step, not each round: the median is then over all steps")
    p.add_argument("--foreach", action="store_true", help="torch's multi-tensor AdamW")
    return p.parse_args()


ARGS = parse()
# OpenBLAS reads this when it is loaded, which is when torch is.
os.environ["OPENBLAS_NUM_THREADS"] = str(ARGS.threads)
os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.fc_proj = nn.Linear(4 * width, width)
        hidden = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x):
        batch, context, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(self.ln1(x)).split(width, dim=2)
        q = q.view(batch, context, self.heads, size).transpose(1, 2)
        k = k.view(batch, context, self.heads, size).transpose(1, 2)
        v = v.view(batch, context, self.heads, size).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(size))
        scores = scores.masked_fill(self.hidden, float("-inf"))
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, context, width)
        x = x + self.proj(y)
        return x + self.fc_proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.token = nn.Embedding(256, a.width)
        self.position = nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads, a.context) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith("proj.weight")
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * a.layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        self.register_buffer("positions", torch.arange(a.context), persistent=False)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(self.positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def main():
    a = ARGS
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    with open(a.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    model = Gpt(a)
    if a.precision == "bf16":
        model = model.bfloat16()
    decays = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": a.weight_decay}, {"params": others, "weight_decay": 0}],
        lr=a.lr, betas=(0.9, 0.99), foreach=a.foreach)

    def step():
        starts = torch.randint(len(text) - a.context - 1, (a.batch,)).tolist()
        tokens = torch.stack([text[s : s + a.context] for s in starts])
        targets = torch.stack([text[s + 1 : s + 1 + a.context] for s in starts])
        loss = model(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if a.clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
        return loss.item()

    first = step()
    for _ in range(2):
        step()
    times = []
    for _ in range(a.rounds * (a.steps if a.each_step else 1)):
        begin = time.perf_counter()
        for _ in range(1 if a.each_step else a.steps):
            last = step()
        times.append((time.perf_counter() - begin) * 1e3 / (1 if a.each_step else a.steps))
    print(json.dumps({
        "torch": torch.__version__, "threads": a.threads, "precision": a.precision,
        "batch": a.batch, "context": a.context, "layers": a.layers, "heads": a.heads,
        "width": a.width, "parameters": sum(p.numel() for p in model.parameters()),
        "first_loss": first, "last_loss": last, "times_ms": times,
        "step_ms_median": statistics.median(times)}))


if __name__ == "__main__":
    main()
