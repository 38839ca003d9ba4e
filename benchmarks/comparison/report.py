"""What a comparison's runs come to: medians, ratios, tables and pictures, by Python alone."""

import math
import statistics
from html import escape

# (key in a run, head of the column, digits)
COLUMNS = [
    ("tokens_per_s_per_gpu", "tokens/s/GPU", 0),
    ("mfu_pct", "MFU %", 1),
    ("device_gib", "device GiB", 1),
    ("step_ms", "step ms", 1),
    ("communication_ms", "communication ms", 1),
    ("exposed_ms", "exposed ms", 2),
    ("overlap_pct", "overlap %", 1),
    ("host_ms", "host ms", 1),
]


def our_run(result, gpus):
    """A run of examples/llama, from the JSON that it writes."""
    ms = result["step_ms_median"]
    tokens = result["batch"] * result["sequence"] * result.get("accumulate", 1)
    communication, exposed = result.get("communication_ms"), result.get("exposed_ms")
    rate = tokens * 1e3 / ms
    return {
        "tokens_per_s_per_gpu": round(rate, 1),
        # By the operations of a token, whatever the program takes its ranks to be.
        "mfu_pct": round(100 * rate * result["flops_per_token"] / 989e12, 2),
        "device_gib": round(result["device_bytes"] / 2**30, 2),
        "step_ms": round(ms, 3),
        "step_ms_min": round(result["step_ms_min"], 3),
        "step_ms_max": round(result["step_ms_max"], 3),
        "communication_ms": None if gpus == 1 else communication,
        "exposed_ms": None if gpus == 1 else exposed,
        "overlap_pct": overlap(communication, exposed) if gpus > 1 else None,
        "host_ms": round(result["host_enqueue_us"] / 1e3, 2),
        "losses": result["losses"],
    }


def peer_run(result):
    """A run of peers/torch_llama_sharded.py, from the line that it prints."""
    kept = {key: result.get(key) for key, _, _ in COLUMNS}
    kept["step_ms"] = result["step_ms"]["median"]
    kept["step_ms_min"] = result["step_ms"]["min"]
    kept["step_ms_max"] = result["step_ms"]["max"]
    kept["host_ms"] = result["host_launch_ms"]
    if result.get("world", 1) == 1:
        kept.update(communication_ms=None, exposed_ms=None, overlap_pct=None)
    for key in ("torch", "gpu", "peak_allocated_gib", "peak_reserved_gib", "ready_s",
                "profile_error", "losses"):
        if key in result:
            kept[key] = result[key]
    return kept


def overlap(communication, exposed):
    if not communication or exposed is None:
        return None
    return round(100 * max(0.0, 1 - exposed / communication), 1)


def why(text, code, timed_out, limit):
    """Why a run failed, in few words, from what it printed."""
    if timed_out:
        return f"no result within {limit:.0f} s"
    if "out of memory" in text.lower() or "OutOfMemory" in text:
        return "out of memory"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error:" in line or
               line.startswith("llama:")]
    last = (telling or lines or ["it said nothing"])[-1]
    return f"exit {code}: {last[:120]}"


def summarised(runs, references, apart=()):
    """One entry a row, in the order of `runs`: medians over the rounds that succeeded, what else
    they say, and, unless its program is named by `apart`, the ratio of its rate to the best
    reference of the same size. A row of which no round succeeded has an `error`."""
    rows = {}
    for run in runs:
        rows.setdefault((run["size"], run["program"]), []).append(run)
    summary = []
    for (size, program), all_runs in rows.items():
        good = [run for run in all_runs if "error" not in run]
        row = {"size": size, "program": program, "rounds": len(good),
               "command": all_runs[-1]["command"]}
        if good:
            for key, _, _ in COLUMNS:
                values = [run[key] for run in good if run.get(key) is not None]
                row[key] = round(statistics.median(values), 3) if values else None
            row["rates"] = [run["tokens_per_s_per_gpu"] for run in good]
            row["losses"] = good[0].get("losses")
            if len(good) < len(all_runs):
                row["failed_rounds"] = [run["error"] for run in all_runs if "error" in run]
        else:
            row["error"] = all_runs[0]["error"]
        summary.append(row)
    for row in summary:
        others = [r for r in summary if r["size"] == row["size"] and r["program"] in references and
                  "error" not in r]
        if "error" in row or not others or row["program"] in apart:
            row["ratio"] = None
            continue
        best = max(others, key=lambda r: r["tokens_per_s_per_gpu"])
        row["ratio"] = round(row["tokens_per_s_per_gpu"] / best["tokens_per_s_per_gpu"], 3)
        row["ratio_to"] = best["program"]
    return summary


def cell(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def markdown(summary, title, sizes):
    """A table a size. `sizes`: what is said of each."""
    lines = [f"# {title}", ""]
    for size in dict.fromkeys(row["size"] for row in summary):
        rows = [row for row in summary if row["size"] == size]
        named = next((row["ratio_to"] for row in rows if row.get("ratio_to")), None)
        lines += [f"## {size}: {sizes.get(size, '')}".rstrip(": "), ""]
        if named:
            lines += [f"Ratios are to `{named}`.", ""]
        heads = ["", *[head for _, head, _ in COLUMNS], "ratio", "rounds"]
        lines += ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
        for row in rows:
            if "error" in row:
                said = "failed: " + row["error"].replace("|", "\\|").replace("\n", " ")
                cells = [said, *[""] * (len(COLUMNS) + 1)]
            else:
                cells = [cell(row[key], digits) for key, _, digits in COLUMNS]
                rates = row["rates"]
                if len(rates) > 1:
                    cells[0] += f" ({min(rates):,.0f}-{max(rates):,.0f})"
                cells += [cell(row["ratio"], 3), str(row["rounds"])]
            lines.append("| " + " | ".join([row["program"], *cells]) + " |")
        lines.append("")
    return "\n".join(lines)


# Pictures.

PALETTE = ["#1b6ca8", "#d1603d", "#4f9d69", "#8a5a9e", "#c9a227", "#5c6b73", "#b0413e", "#2a9d8f"]
GREY = "#a0a0a0"
FONT = 'font-family="sans-serif" font-size="12"'


def nice_step(span, count):
    """A step of 1, 2 or 5 times a power of ten, of which about `count` make `span`."""
    if span <= 0:
        return 1.0
    rough = span / count
    power = 10 ** math.floor(math.log10(rough))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)


def svg(width, height, parts, title):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" {FONT}>')
    return "\n".join([head, f"<title>{escape(title)}</title>",
                      f'<rect width="{width}" height="{height}" fill="white"/>',
                      f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" font-size="15">'
                      f"{escape(title)}</text>", *parts, "</svg>", ""])


def bars_svg(summary, title, left_out=()):
    """Grouped bars, a group a size: MFU, so that sizes share an axis; ratios above the bars.
    Programs that have none are grey; those named by `left_out` are not shown."""
    groups = {}
    for row in summary:
        if "error" in row or row["program"] in left_out:
            continue
        if row.get("mfu_pct") and row["size"] != "curves":
            groups.setdefault(row["size"], []).append(row)
    bar, gap, left, top, plot = 34, 40, 56, 40, 260
    count = sum(len(rows) for rows in groups.values())
    width = max(400, left + 20 + count * bar + gap * len(groups))
    height = top + plot + 190
    most = max((row["mfu_pct"] for rows in groups.values() for row in rows), default=1.0)
    step = nice_step(most * 1.1, 5)
    full = step * math.ceil(most * 1.1 / step)
    parts = []
    value = 0.0
    while value <= full + 1e-9:
        y = top + plot * (1 - value / full)
        parts += [f'<line x1="{left}" y1="{y:.1f}" x2="{width - 10}" y2="{y:.1f}" stroke="#ddd"/>',
                  f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>']
        value += step
    parts.append(f'<text x="14" y="{top + plot / 2:.0f}" text-anchor="middle" '
                 f'transform="rotate(-90 14 {top + plot / 2:.0f})">MFU %</text>')
    x = left + gap / 2
    for size, rows in groups.items():
        middle = x + len(rows) * bar / 2
        for row in rows:
            tall = plot * row["mfu_pct"] / full
            y = top + plot - tall
            colour = PALETTE[0] if row["program"].startswith("ours") else PALETTE[1]
            colour = colour if row.get("ratio") else GREY
            centre = x + bar / 2 - 2
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar - 4}" height="{tall:.1f}" '
                         f'fill="{colour}"><title>{escape(row["program"])}: '
                         f'{row["tokens_per_s_per_gpu"]:,.0f} tokens/s/GPU</title></rect>')
            if row.get("ratio"):
                parts.append(f'<text x="{centre:.1f}" y="{y - 4:.1f}" text-anchor="middle" '
                             f'font-size="10">{row["ratio"]:.2f}</text>')
            parts.append(f'<text x="{centre:.1f}" y="{top + plot + 12}" text-anchor="end" '
                         f'transform="rotate(-55 {centre:.1f} {top + plot + 12})">'
                         f'{escape(row["program"])}</text>')
            x += bar
        parts.append(f'<text x="{middle:.1f}" y="{height - 12}" text-anchor="middle" '
                     f'font-size="13">{escape(size)}</text>')
        x += gap
    return svg(width, height, parts, title)


def smoothed(values, width):
    """Each value's mean with those up to `width` before it."""
    return [statistics.fmean(values[max(0, i - width):i + 1]) for i in range(len(values))]


def curves_svg(curves, title, width=9):
    """Loss curves over each other, each a mean of the last `width + 1` steps. `curves`: [(name,
    losses)]."""
    curves = [(name, smoothed(losses, width)) for name, losses in curves if losses]
    left, top, wide, plot = 56, 40, 640, 320
    longest = max((len(losses) for _, losses in curves), default=1)
    values = [v for _, losses in curves for v in losses if math.isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    step = nice_step(max(high - low, 1e-6), 6)
    low, high = step * math.floor(low / step), step * math.ceil(high / step)
    high = high if high > low else low + step

    def place(i, value):
        return (left + wide * i / max(1, longest - 1),
                top + plot * (1 - (value - low) / (high - low)))

    parts = []
    for k in range(round((high - low) / step) + 1):
        _, y = place(0, low + k * step)
        parts += [f'<line x1="{left}" y1="{y:.1f}" x2="{left + wide}" y2="{y:.1f}" '
                  'stroke="#ddd"/>',
                  f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">'
                  f"{low + k * step:.4g}</text>"]
    for n, (name, losses) in enumerate(curves):
        colour = PALETTE[n % len(PALETTE)]
        points = " ".join("{:.1f},{:.1f}".format(*place(i, v)) for i, v in enumerate(losses)
                          if math.isfinite(v))
        dashes = ' stroke-dasharray="5 3"' if n >= len(PALETTE) else ""
        parts += [f'<polyline points="{points}" fill="none" stroke="{colour}" '
                  f'stroke-width="1.5"{dashes}/>',
                  f'<line x1="{left + wide - 190}" y1="{top + 12 + 18 * n}" '
                  f'x2="{left + wide - 165}" y2="{top + 12 + 18 * n}" stroke="{colour}" '
                  f'stroke-width="2"{dashes}/>',
                  f'<text x="{left + wide - 158}" y="{top + 16 + 18 * n}">{escape(name)}</text>']
    parts.append(f'<text x="{left + wide / 2:.0f}" y="{top + plot + 34}" text-anchor="middle">'
                 f"step (of {longest})</text>")
    return svg(left + wide + 30, top + plot + 50, parts, title)
