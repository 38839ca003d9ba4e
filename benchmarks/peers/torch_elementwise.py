#!/usr/bin/env python3
"""The bandwidth of torch's element-wise passes over a training state, at 256 Mi elements.

Fused AdamW (fp32 parameters and states), foreach clip_grad_norm_ and casts between bf16 and fp32,
beside a copy on the device in the same run. Bytes are those that each pass has to read and write.
Needs torch with CUDA.

    python3 benchmarks/peers/torch_elementwise.py [--json FILE]
"""

import argparse
import json
import statistics

import torch

TENSORS = 16
ELEMENTS = 256 << 20  # in all


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--json", metavar="FILE", help="file to write the results to")
    p.add_argument("--rounds", type=int, default=7, help="measured; the median is reported")
    p.add_argument("--runs", type=int, default=10, help="in a round")
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


def tensors(dtype=torch.float32):
    return [torch.randn(ELEMENTS // TENSORS, device="cuda").to(dtype) for _ in range(TENSORS)]


def passes():
    """(name, bytes an element, what it is, call) of each pass, its tensors made when it is due."""
    source, target = (torch.randn(4 * ELEMENTS, device="cuda") for _ in range(2))
    yield "copy", 4 * 8, "4 GiB on the device, read + write", lambda: target.copy_(source)
    del source, target

    parameters = [torch.nn.Parameter(t) for t in tensors()]
    for p, g in zip(parameters, tensors()):
        p.grad = g
    adamw = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    yield ("adamw", 28, "fused, all fp32: reads parameter, gradient, two moments; writes three",
           adamw.step)
    yield ("clip", 12, "clip_grad_norm_, foreach: reads for the norm, then reads and writes",
           lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True))
    yield ("norm", 4, "get_total_norm, foreach: reads",
           lambda: torch.nn.utils.get_total_norm([p.grad for p in parameters], foreach=True))
    del parameters, adamw

    wide = torch.randn(ELEMENTS, device="cuda")
    narrow = wide.bfloat16()
    yield "cast_fp32_to_bf16", 6, "copy_, one tensor", lambda: narrow.copy_(wide)
    yield "cast_bf16_to_fp32", 6, "copy_, one tensor", lambda: wide.copy_(narrow)


def main():
    options = parse()
    if not torch.cuda.is_available():
        raise SystemExit("error: torch sees no CUDA device")
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cuda": torch.version.cuda, "elements": ELEMENTS, "measurements": []}
    print(f"{result['device']}, torch {result['torch']}, CUDA {result['cuda']}")
    copy = None
    for name, bytes_each, what, call in passes():
        elapsed_ms(call, 3)
        ms = statistics.median(elapsed_ms(call, options.runs) for _ in range(options.rounds))
        rate = bytes_each * ELEMENTS / ms / 1e6
        copy = copy or rate
        del call
        result["measurements"].append({
            "name": name, "value": round(rate, 1), "unit": "GB/s", "ms": round(ms, 4),
            "of_copy": round(rate / copy, 4), "detail": f"{what}; {bytes_each} bytes an element"})
        print(f"{name:18} {rate:7.0f} GB/s {ms:8.3f} ms {rate / copy:7.3f} of the copy; {what}",
              flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
