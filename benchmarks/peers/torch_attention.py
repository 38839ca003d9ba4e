#!/usr/bin/env python3
"""Times torch's causal attention, forward and backward, at the shapes of Llama-3 models.

bf16, grouped queries, the backends cuDNN and flash, each as it comes, deterministic (by
torch.use_deterministic_algorithms), and cuDNN also with torch.backends.cudnn.deterministic alone.
FLOPs count the causal half only: 2 products forward, 5 backward. A backend that refuses a case is
asked again with keys and values expanded to all heads; why it refuses is printed. Each case also
says whether five backward passes gave the same bits. Needs torch with CUDA.

    python3 benchmarks/peers/torch_attention.py [--json FILE]
"""

import argparse
import json
import math
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# batch, tokens, heads, key and value heads, head size
SHAPES = {
    "1b": (4, 4096, 32, 8, 64),
    "3b": (2, 4096, 24, 8, 128),
    "8b": (1, 4096, 32, 8, 128),
}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
MODES = {
    "cudnn": ("default", "cudnn_flag", "deterministic"),
    "flash": ("default", "deterministic"),
}
GIB = 1 << 30


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--json", metavar="FILE", help="file to write the results to")
    p.add_argument("--seconds", type=float, default=0.5, help="of each measured loop")
    p.add_argument("--soak", type=float, default=1.0, help="seconds of load before each case")
    return p.parse_args()


def elapsed_ms(call, runs):
    """Milliseconds of one of so many calls, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / runs


class Case:
    """One shape's tensors, and its two passes."""

    def __init__(self, shape, expanded):
        batch, tokens, heads, kv_heads, size = shape
        if expanded:
            kv_heads = heads
        generator = torch.Generator(device="cuda").manual_seed(1)

        def random(count, grad=True):
            # batch x tokens x heads x size in memory, as a model's projections leave it.
            x = torch.randn(batch, tokens, count, size, device="cuda", dtype=torch.bfloat16,
                            generator=generator)
            return x.transpose(1, 2).requires_grad_(grad)

        self.inputs = [random(heads), random(kv_heads), random(kv_heads)]
        self.dy = random(heads, grad=False)
        self.enable_gqa = not expanded
        product = 2 * batch * heads * tokens * tokens * size / 2
        self.forward_flops = 2 * product
        self.backward_flops = 5 * product

    def forward(self):
        return scaled_dot_product_attention(*self.inputs, is_causal=True,
                                            enable_gqa=self.enable_gqa)

    def backward(self, y):
        return torch.autograd.grad(y, self.inputs, self.dy, retain_graph=True)


def measure(case, options):
    y = case.forward()
    first = case.backward(y)
    same_bits = True
    for _ in range(4):
        again = case.backward(y)
        same_bits &= all(torch.equal(a, b) for a, b in zip(first, again))
    del first, again

    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = case.backward(y)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - held
    del gradients

    def both():
        case.backward(case.forward())

    def runs(ms, seconds):
        return max(3, math.ceil(seconds * 1e3 / ms))

    rough = elapsed_ms(both, 5)
    elapsed_ms(both, runs(rough, options.soak))
    backward_ms = elapsed_ms(lambda: case.backward(y), runs(rough, options.seconds))
    # With gradients, as in training: the kernel then writes what the backward pass needs.
    elapsed_ms(case.forward, 5)
    forward_ms = elapsed_ms(case.forward, runs(rough / 3, options.seconds))
    both_ms = elapsed_ms(both, runs(rough, options.seconds))

    def rate(flops, ms):
        return round(flops / ms / 1e9, 1)

    return {
        "forward_ms": round(forward_ms, 4),
        "backward_ms": round(backward_ms, 4),
        "both_ms": round(both_ms, 4),
        "forward_tflops": rate(case.forward_flops, forward_ms),
        "backward_tflops": rate(case.backward_flops, backward_ms),
        "both_tflops": rate(case.forward_flops + case.backward_flops, both_ms),
        "backward_gib": round(peak / GIB, 2),
        "same_bits": same_bits,
    }


def attempt(model, backend, mode, expanded, options):
    """One row of results; its key "refused" says why there are none."""
    row = {"model": model, "backend": backend, "mode": mode,
           "keys_values": "expanded" if expanded else "grouped"}
    torch.use_deterministic_algorithms(mode == "deterministic")
    torch.backends.cudnn.deterministic = mode != "default"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(BACKENDS[backend]):
                row |= measure(Case(SHAPES[model], expanded), options)
        except RuntimeError as error:  # torch's warnings say what its error does not
            causes = [str(w.message) for w in caught] + [str(error)]
            # Without torch's " (Triggered internally at ...)" and its traces.
            short = [cause.split(" (Triggered")[0].split("\n")[0] for cause in causes]
            row["refused"] = " | ".join(dict.fromkeys(short))
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.deterministic = False
    torch.cuda.empty_cache()
    return row


def show(row):
    name = f"{row['model']} {row['backend']:5} {row['mode']:13} {row['keys_values']:8}"
    if "refused" in row:
        print(f"{name} refused: {row['refused']}", flush=True)
        return
    parts = [f"{part} {row[part + '_ms']:7.3f} ms {row[part + '_tflops']:6.1f} TFLOP/s"
             for part in ("forward", "backward", "both")]
    bits = "same bits" if row["same_bits"] else "bits differ"
    memory = f"backward takes {row['backward_gib']:.2f} GiB with its gradients"
    print(f"{name} {', '.join(parts)}, {memory}, {bits}", flush=True)


def main():
    options = parse()
    if not torch.cuda.is_available():
        raise SystemExit("error: torch sees no CUDA device")
    # Else the deterministic mode also fills each new tensor, which would be measured.
    torch.utils.deterministic.fill_uninitialized_memory = False
    cudnn = torch.backends.cudnn.version()
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cuda": torch.version.cuda, "cudnn": cudnn, "cases": []}
    print(f"{result['device']}, torch {result['torch']}, CUDA {result['cuda']}, cuDNN {cudnn}")
    for model in SHAPES:
        for backend in BACKENDS:
            for mode in MODES[backend]:
                for expanded in (False, True):
                    row = attempt(model, backend, mode, expanded, options)
                    show(row)
                    result["cases"].append(row)
                    if "refused" not in row:
                        break
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
