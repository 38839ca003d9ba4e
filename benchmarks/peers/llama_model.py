"""A Llama-3 model as torchtitan has it, and its first values, for torch_llama_sharded.py."""

import math
import os
import zlib

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

CONFIGS = {
    "tiny": {"layers": 4, "dim": 512, "ff": 1536, "heads": 8, "kv": 4},
    "1b": {"layers": 16, "dim": 2048, "ff": 8192, "heads": 32, "kv": 8},
    "3b": {"layers": 28, "dim": 3072, "ff": 8192, "heads": 24, "kv": 8},
    "8b": {"layers": 32, "dim": 4096, "ff": 14336, "heads": 32, "kv": 8},
}
ROPE_THETA = 500000.0
NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), NORM_EPSILON)


def rope_tables(seq, size, device):
    """Cosines and sines [seq, size / 2], in fp32 from angles in fp64."""
    exponents = torch.arange(size // 2, dtype=torch.float64) / (size // 2)
    angles = torch.outer(torch.arange(seq, dtype=torch.float64), ROPE_THETA**-exponents)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def turn(x, cosines, sines):
    """x [batch, seq, heads, size]: element i of the first half turns with i of the second."""
    first, second = x.float().chunk(2, dim=-1)
    c, s = cosines[None, :, None, :], sines[None, :, None, :]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c, packed):
        super().__init__()
        self.heads, self.kv, self.size = c["heads"], c["kv"], c["dim"] // c["heads"]
        q, kv = self.heads * self.size, self.kv * self.size
        self.packed = packed
        if packed:
            self.wqkv = nn.Linear(c["dim"], q + 2 * kv, bias=False)
        else:
            self.wq = nn.Linear(c["dim"], q, bias=False)
            self.wk = nn.Linear(c["dim"], kv, bias=False)
            self.wv = nn.Linear(c["dim"], kv, bias=False)
        self.wo = nn.Linear(q, c["dim"], bias=False)

    def forward(self, x, cosines, sines):
        batch, seq, _ = x.shape
        if self.packed:
            kv = self.kv * self.size
            q, k, v = self.wqkv(x).split([self.heads * self.size, kv, kv], dim=-1)
        else:
            q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = turn(q.view(batch, seq, self.heads, self.size), cosines, sines).transpose(1, 2)
        k = turn(k.view(batch, seq, self.kv, self.size), cosines, sines).transpose(1, 2)
        v = v.view(batch, seq, self.kv, self.size).transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)
        return self.wo(attended.transpose(1, 2).reshape(batch, seq, self.heads * self.size))


class FeedForward(nn.Module):
    def __init__(self, c, packed):
        super().__init__()
        self.packed = packed
        if packed:
            self.w13 = nn.Linear(c["dim"], 2 * c["ff"], bias=False)
        else:
            self.w1 = nn.Linear(c["dim"], c["ff"], bias=False)
            self.w3 = nn.Linear(c["dim"], c["ff"], bias=False)
        self.w2 = nn.Linear(c["ff"], c["dim"], bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1) if self.packed else (self.w1(x), self.w3(x))
        return self.w2(F.silu(gate) * up)


class Block(nn.Module):  # nothing in it depends on its number: all blocks share a compiled graph
    def __init__(self, c, packed):
        super().__init__()
        self.attention_norm = RMSNorm(c["dim"])
        self.attention = Attention(c, packed)
        self.ffn_norm = RMSNorm(c["dim"])
        self.feed_forward = FeedForward(c, packed)

    def forward(self, x, cosines, sines):
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c, vocab, packed):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, c["dim"])
        self.layers = nn.ModuleDict({str(i): Block(c, packed) for i in range(c["layers"])})
        self.norm = RMSNorm(c["dim"])
        self.output = nn.Linear(c["dim"], vocab, bias=False)
        self.rope = None  # not buffers, which DeepSpeed would round to bf16
        self.checkpoint = False  # by torch.utils.checkpoint, where blocks are not wrapped for it

    def forward(self, tokens):
        x = self.tok_embeddings(tokens).to(torch.bfloat16)
        for block in self.layers.values():
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(block, x, *self.rope, use_reentrant=True)
            else:
                x = block(x, *self.rope)
        return self.output(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def flops_per_token(c, parameters, embedding, seq):
    """As examples/llama counts: 6 a parameter that is multiplied by, attention without a discount
    for the causal mask, nothing for recomputation."""
    return 6 * (parameters - embedding) + 12 * c["layers"] * c["dim"] * seq


# First values.


def clean(name):
    """A parameter's name without what wrappers add."""
    for part in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "module."):
        name = name.replace(part, "")
    return name


class FirstValues:
    """first(name, shape): a whole parameter in fp32, the same however it will be sharded."""

    def __init__(self, a, c, device):
        self.a, self.c, self.device = a, c, device
        self.generator = torch.Generator(device=device)
        self.places = {}
        if not a.weights:
            return
        c = dict(c, kv_width=c["kv"] * (c["dim"] // c["heads"]))
        begin = 0
        for name, shape in self.in_file(c, a.vocab):
            self.places[name] = (begin, shape)
            begin += math.prod(shape)
        if os.path.getsize(a.weights) != 4 * begin:
            raise ValueError(f"{a.weights} does not have the {begin} values of the model")
        self.flat = torch.from_file(a.weights, shared=False, size=begin, dtype=torch.float32)

    @staticmethod
    def in_file(c, vocab):
        yield "tok_embeddings.weight", (vocab, c["dim"])
        for i in range(c["layers"]):
            yield f"layers.{i}.attention_norm.weight", (c["dim"],)
            yield f"layers.{i}.attention.wqkv.weight", (c["dim"] + 2 * c["kv_width"], c["dim"])
            yield f"layers.{i}.attention.wo.weight", (c["dim"], c["dim"])
            yield f"layers.{i}.ffn_norm.weight", (c["dim"],)
            yield f"layers.{i}.feed_forward.w13.weight", (2 * c["ff"], c["dim"])
            yield f"layers.{i}.feed_forward.w2.weight", (c["dim"], c["ff"])
        yield "norm.weight", (c["dim"],)
        yield "output.weight", (vocab, c["dim"])

    def __call__(self, name, shape):
        if self.places:
            return self.from_file(name, shape)
        if len(shape) == 1:
            return torch.ones(shape, device=self.device)
        self.generator.manual_seed(self.a.weights_seed * 1000003 + zlib.crc32(name.encode()))
        deviation = self.c["dim"] ** -0.5 if name.startswith("output.") else 0.02
        whole = torch.empty(shape, device=self.device, dtype=torch.float32)
        return whole.normal_(0.0, deviation, generator=self.generator)

    def from_file(self, name, shape):
        # Where q, k and v (or gate and up) are parameters of their own: rows of the packed one.
        dim, kv = self.c["dim"], self.c["kv"] * (self.c["dim"] // self.c["heads"])
        first_row = {"wq": 0, "wk": dim, "wv": dim + kv, "w1": 0, "w3": self.c["ff"]}
        kind = name.split(".")[-2]
        row = first_row.get(kind, 0)
        if kind in first_row:
            name = name.replace(f".{kind}.", ".wqkv." if kind in ("wq", "wk", "wv") else ".w13.")
        begin, _ = self.places[name]
        width = shape[-1] if len(shape) == 2 else 1
        values = self.flat[begin + row * width:begin + row * width + math.prod(shape)].view(shape)
        # Masters begin as the parameters, that is, rounded.
        return values.to(self.device).bfloat16().float()


@torch.no_grad()
def set_first_values(model, first, rank, world):
    for name, p in model.named_parameters():
        whole = first(clean(name), tuple(p.shape))
        if hasattr(p, "to_local"):  # dimension 0 is sharded, as torch.chunk does
            chunks = whole.chunk(world, dim=0)
            mine = chunks[rank] if rank < len(chunks) else whole[:0]
            p.to_local().copy_(mine)
        else:
            p.copy_(whole)
