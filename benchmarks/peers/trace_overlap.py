"""How much of a training step's communication a profiler's trace shows, and how much is exposed."""


def union(intervals):
    merged = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > begin:
            merged.append([begin, end])
    return merged


def length(merged):
    return sum(end - begin for begin, end in merged)


def common(a, b):
    """How much of two unions is common."""
    i = j = 0
    total = 0.0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def analyse(events, steps, after_barrier, copies):
    """Of a trace's events: how long communication took a step (the union of NCCL's kernels and of
    copies between GPUs), and how much of it no kernel of the compute stream covered. NCCL's kernels
    wait for the other ranks, which counts. `copies`: gathers are copies on a side stream."""
    gpu = []
    for e in events:
        category = str(e.get("cat", "")).lower()
        if e.get("ph") == "X" and category in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin = float(e["ts"])
            gpu.append((begin, begin + float(e.get("dur", 0)), category == "kernel",
                        str(e.get("name", "")).lower(), (e.get("args") or {}).get("stream")))
    if after_barrier:  # tracing starts at another time on each rank; the first all-reduce lines up
        ends = [g[1] for g in gpu if "nccl" in g[3] and "allreduce" in g[3]]
        gpu = [g for g in gpu if not ends or g[0] >= min(ends)]
    streams = {}
    for begin, end, kernel, name, stream in gpu:
        if kernel and "nccl" not in name:
            streams[stream] = streams.get(stream, 0.0) + end - begin
    if not streams:
        return {"profile_error": "no kernel of the GPU in the trace"}
    compute_stream = max(streams, key=streams.get)

    def communicates(g):
        _, _, kernel, name, stream = g
        if kernel:
            return "nccl" in name or "barrier_kernel" in name
        return "ptop" in name or (copies and "dtod" in name and stream != compute_stream)

    sent = union(g[:2] for g in gpu if communicates(g))
    compute = union(g[:2] for g in gpu
                    if g[2] and g[4] == compute_stream and not communicates(g))
    everything = union(g[:2] for g in gpu)
    window = everything[-1][1] - everything[0][0]
    covered = common(sent, compute)
    ms = 1e3 * steps
    return {
        "communication_ms": round(length(sent) / ms, 3),
        "exposed_ms": round((length(sent) - covered) / ms, 3),
        "overlap_pct": round(100 * covered / length(sent), 2) if sent else None,
        "compute_ms": round(length(compute) / ms, 3),
        "profiled_step_ms": round(window / ms, 3),
        "idle_pct": round(100 * (1 - length(everything) / window), 2),
    }
