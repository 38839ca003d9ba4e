#!/usr/bin/env python3
"""The model of examples/llama as a plain torch loop, to compare its losses and step times with.

Same first values (a file of all parameters as little-endian fp32, in the order of `shapes` below),
same batches, same AdamW and same clipping as examples/llama and tests/llama/reference_train.cpp.
torch 2.0 or later on a GPU; on the CPU 1.13 will do.

    torch_llama.py --weights FILE --text FILE [--device cuda] [--dtype bf16] [--json FILE] ...
"""

import argparse
import array
import json
import math
import statistics
import sys
import time

import torch
from torch.nn import functional as F

ROPE_THETA = 500000.0
NORM_EPSILON = 1e-5


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--weights", required=True, help="the first values, raw little-endian fp32")
    p.add_argument("--text", required=True, help="any file: its bytes are the tokens")
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--ff", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv", type=int, default=2)
    p.add_argument("--vocab", type=int, default=256)
    p.add_argument("--tied", action="store_true")
    p.add_argument("--seq", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--threads", type=int, default=0, help="of the CPU; 0: torch's choice")
    p.add_argument("--tf32", action="store_true", help="let fp32 products use TF32")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--json", help="where the losses go")
    return p.parse_args()


def shapes(a):
    """Names and sizes of the parameters, in order; matrices are [out, in]."""
    size = a.dim // a.heads
    yield "tok_embeddings", (a.vocab, a.dim)
    for i in range(a.layers):
        yield f"layers.{i}.attention_norm", (a.dim,)
        yield f"layers.{i}.wqkv", ((a.heads + 2 * a.kv) * size, a.dim)
        yield f"layers.{i}.wo", (a.dim, a.heads * size)
        yield f"layers.{i}.ffn_norm", (a.dim,)
        yield f"layers.{i}.w13", (2 * a.ff, a.dim)
        yield f"layers.{i}.w2", (a.dim, a.ff)
    yield "norm", (a.dim,)
    if not a.tied:
        yield "output", (a.vocab, a.dim)


def read_weights(a):
    with open(a.weights, "rb") as file:
        values = array.array("f", file.read())
    if sys.byteorder == "big":
        values.byteswap()
    expected = sum(math.prod(shape) for _, shape in shapes(a))
    if len(values) != expected:
        sys.exit(f"{a.weights} has {len(values)} values, the model has {expected}")
    flat = torch.frombuffer(values, dtype=torch.float32)
    weights = {}
    begin = 0
    for name, shape in shapes(a):
        count = math.prod(shape)
        weights[name] = flat[begin:begin + count].view(shape).clone().to(a.device)
        begin += count
    return weights


def rms_norm(x, weight):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return (wide * scale * weight.float()).to(x.dtype)


def angles(a):
    """Cosines and sines [seq, head_dim / 2], in fp32 from angles in fp64."""
    half = a.dim // a.heads // 2
    exponents = torch.arange(half, dtype=torch.float64) / half
    table = torch.outer(torch.arange(a.seq, dtype=torch.float64), ROPE_THETA ** -exponents)
    return table.cos().float().to(a.device), table.sin().float().to(a.device)


def turn(x, cosines, sines):
    """x [batch, heads, seq, head_dim]: element i of the first half turns with i of the second."""
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(turned, dim=-1).to(x.dtype)


def attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    # Before torch 2.0.
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1).to(v.dtype) @ v


def make_loss(a):
    """The mean loss as a function of the parameters, tokens and targets, both [batch, seq]."""
    size = a.dim // a.heads
    cosines, sines = angles(a)

    def loss(w, tokens, targets):
        batch, seq = tokens.shape

        def heads_of(x, count):
            return x.view(batch, seq, count, size).transpose(1, 2)

        x = F.embedding(tokens, w["tok_embeddings"])
        for i in range(a.layers):
            layer = f"layers.{i}."
            packed = F.linear(rms_norm(x, w[layer + "attention_norm"]), w[layer + "wqkv"])
            q, k, v = packed.split([a.heads * size, a.kv * size, a.kv * size], dim=-1)
            q = turn(heads_of(q, a.heads), cosines, sines)
            k = turn(heads_of(k, a.kv), cosines, sines)
            v = heads_of(v, a.kv)
            if a.kv != a.heads:
                k = k.repeat_interleave(a.heads // a.kv, dim=1)
                v = v.repeat_interleave(a.heads // a.kv, dim=1)
            attended = attention(q, k, v).transpose(1, 2).reshape(batch, seq, a.dim)
            x = x + F.linear(attended, w[layer + "wo"])
            gate, up = F.linear(rms_norm(x, w[layer + "ffn_norm"]),
                                w[layer + "w13"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w[layer + "w2"])
        head = w["tok_embeddings" if a.tied else "output"]
        logits = F.linear(rms_norm(x, w["norm"]), head)
        return F.cross_entropy(logits.view(-1, a.vocab).float(), targets.reshape(-1))

    return loss


def batches(a):
    """Sequences follow each other through the text, and begin again where it ends."""
    with open(a.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    if len(text) <= a.seq or int(text.max()) >= a.vocab:
        sys.exit(f"{a.text} is too short, or has bytes beyond the vocabulary")
    for step in range(a.steps):
        firsts = [(step * a.batch + b) * a.seq % (len(text) - a.seq) for b in range(a.batch)]
        rows = torch.stack([text[first:first + a.seq + 1] for first in firsts]).to(a.device)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main():
    a = parse()
    if a.threads:
        torch.set_num_threads(a.threads)
    if a.device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = a.tf32
    weights = read_weights(a)
    if a.dtype == "bf16":
        # The masters begin as the parameters, that is, rounded; gradients come back as bf16.
        parameters = {name: w.bfloat16().requires_grad_() for name, w in weights.items()}
        masters = {name: w.detach().float() for name, w in parameters.items()}
    else:
        parameters = masters = {name: w.requires_grad_() for name, w in weights.items()}
    loss_of = make_loss(a)
    if a.compile:
        loss_of = torch.compile(loss_of)
    matrices = [w for w in masters.values() if w.dim() == 2]
    norms = [w for w in masters.values() if w.dim() != 2]
    options = {"fused": True} if a.device.startswith("cuda") else {}
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": a.weight_decay},
         {"params": norms, "weight_decay": 0.0}],
        lr=a.lr, betas=(0.9, 0.95), eps=1e-8, **options)

    losses = []
    times = []
    for step, (tokens, targets) in enumerate(batches(a)):
        begin = time.perf_counter()
        loss = loss_of(parameters, tokens, targets)
        loss.backward()
        if parameters is not masters:
            for name, p in parameters.items():
                masters[name].grad = p.grad.float()
                p.grad = None
        if a.clip > 0:
            torch.nn.utils.clip_grad_norm_(list(masters.values()), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if parameters is not masters:
            with torch.no_grad():
                for name, p in parameters.items():
                    p.copy_(masters[name])
        losses.append(loss.item())  # waits for the loss, not for the update; the next step's does
        times.append((time.perf_counter() - begin) * 1e3)
        if step == 0 or (step + 1) % 20 == 0 or step + 1 == a.steps:
            print(f"step {step + 1}  loss {losses[-1]:.6f}  {times[-1]:.1f} ms", flush=True)

    if len(times) > 3:
        print(f"torch {torch.__version__}, {a.device}, {a.dtype}: "
              f"median {statistics.median(times[3:]):.2f} ms a step")
    if a.json:
        with open(a.json, "w", encoding="ascii") as file:
            json.dump({"losses": losses}, file)
            file.write("\n")


if __name__ == "__main__":
    main()
