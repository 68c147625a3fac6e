"""Times of kernels on a GPU, beside what its memory allows: ``python tests/gpu/bench.py [N ...]``; a JSON line a case.

Each case works on copies of its arrays in turn, together larger than the cache, so that every call reads memory; times
are medians over rounds, by CUDA events around a batch of calls. "must move" are the bytes that have to be read or
written once; a copy of the same arrays' bytes is measured first, and a case's rate is given as a share of that.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROUNDS, BATCH = 9, 4
CACHES = 4  # times the cache that the copies of a case's arrays take
CHUNK, DENSITY = 112, 0.001
TENSORS, ROW, WIDTH = 161, 64, 4
SIZES = (25_000_000, 400_000_000)


class Case(NamedTuple):
    """What is timed on one set of arrays; ``moved`` bytes have to be read or written."""

    name: str
    moved: int
    call: Callable[[Any], Any]
    target: float | None = None  # share of the copy's rate that is aimed at


def sets(xp: Any, n: int) -> list[dict[str, Any]]:
    """As many sets of arrays as it takes to pass over the cache several times, two at least."""
    from mpicomp.ops import gpu

    cache = xp.cuda.Device().attributes["L2CacheSize"]
    count = max(2, min(8, -(-CACHES * cache // (12 * n))))
    made = []
    for seed in range(count):
        generator = xp.random.default_rng(seed)
        memory, grad = (generator.standard_normal(n, dtype=xp.float32) for _ in range(2))
        positions = xp.empty(-(-n // CHUNK), xp.uint8)
        gpu.chunk_max(memory, grad, CHUNK, positions)
        indices = xp.empty(positions.size, gpu.index_dtype(n))
        gpu.chunk_indices(positions, CHUNK, n, indices)
        values = xp.empty(indices.size, xp.float32)
        gpu.gather(memory, grad, indices, values)
        made.append({"memory": memory, "grad": grad, "out": xp.empty_like(grad), "positions": positions,
                     "indices": indices, "values": values, "bits": xp.empty((n + 7) // 8, xp.uint8)})
    return made


def cases(xp: Any, n: int) -> list[Case]:
    """The figures of the kernels, float32; ``s`` is one set of arrays."""
    from mpicomp.ops import gpu

    k, groups = max(1, int(n * DENSITY)), xp.asarray([*range(0, n, 512), n], dtype=xp.int64)
    scales, levels = xp.full(groups.size - 1, 4, xp.float32), xp.empty(-(-n * 4 // 8), xp.uint8)
    key, lam = gpu.Key(1, 2, 3), 4.65  # |N(0, 2)| is above that with probability 0.001
    tensors = [(i * n // TENSORS, (i + 1) * n // TENSORS) for i in range(TENSORS)]
    products = xp.empty(sum(-(-(stop - start) // ROW) for start, stop in tensors) * WIDTH, xp.float32)

    def scalecom(s: Any) -> None:
        gpu.chunk_max(s["memory"], s["grad"], CHUNK, s["positions"])
        gpu.chunk_indices(s["positions"], CHUNK, n, s["indices"])
        gpu.gather(s["memory"], s["grad"], s["indices"], s["values"])
        gpu.masked_update(s["memory"], s["grad"], s["indices"], s["values"], 0.1)
        gpu.scatter(s["out"], s["indices"], s["values"])

    return [
        Case("compensate + chunk-max", 8 * n,
             lambda s: gpu.chunk_max(s["memory"], s["grad"], CHUNK, s["positions"]), 0.85),
        Case("masked update", 12 * n,
             lambda s: gpu.masked_update(s["memory"], s["grad"], s["indices"], s["values"], 0.1), 0.85),
        Case("threshold compaction, 0.1 %", 8 * n, lambda s: gpu.threshold(s["memory"], s["grad"], lam), 0.75),
        Case("exact top-k, 0.1 %", 8 * n, lambda s: gpu.top_k(s["memory"], s["grad"], k)),
        Case("exact top-k, 0.1 %, of the gradient alone", 4 * n, lambda s: gpu.top_k(None, s["grad"], k)),
        Case("add", 12 * n, lambda s: gpu.add(s["out"], s["grad"])),
        Case("one-bit encode", 4 * n + n // 8, lambda s: gpu.pack_signs(s["grad"], s["bits"]), 0.70),
        Case("QSGD encode, 4 bits", 4 * n + n // 2,
             lambda s: gpu.pack_levels(s["grad"], groups, scales, 7, 4, 0, key, levels), 0.70),
        Case("count non-finite", 4 * n, lambda s: gpu.count_nonfinite(s["grad"])),
        Case(f"moments of {TENSORS} tensors", 8 * n, lambda s: gpu.moments_spans(s["memory"], s["grad"], tensors, 0.0)),
        Case(f"projections of {TENSORS} tensors' rows of {ROW}", 8 * n + products.nbytes,
             lambda s: gpu.project_rows_spans(s["memory"], s["grad"], tensors, ROW, WIDTH, 1, products)),
        Case("ScaleCom's device work (leader)", 20 * n, scalecom),
        Case("cupy.argpartition of |gradient|", 4 * n, lambda s: xp.argpartition(xp.abs(s["grad"]), n - k)),
    ]


def seconds(xp: Any, call: Callable[[Any], Any], arrays: list[Any]) -> float:
    """Of one call: the median over rounds, each a batch of calls on arrays in turn."""
    for one in arrays:
        call(one)
    stream, times = xp.cuda.get_current_stream(), []
    for _ in range(ROUNDS):
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        begin.record(stream)
        for i in range(BATCH):
            call(arrays[i % len(arrays)])
        end.record(stream)
        end.synchronize()
        times.append(xp.cuda.get_elapsed_time(begin, end) * 1e-3 / BATCH)
    return statistics.median(times)


def copy_rate(xp: Any, arrays: list[Any]) -> float:
    """Bytes read and written a second by a copy on the device."""
    nbytes = 2 * arrays[0]["grad"].nbytes
    return nbytes / seconds(xp, lambda s: xp.copyto(s["out"], s["grad"]), arrays)


def row(name: str, n: int, moved: int, spent: float, rate: float, target: float | None = None) -> dict[str, Any]:
    """One result: seconds, bytes a second, and the share of what a copy moves a second."""
    return {"case": name, "elements": n, "moved_bytes": moved, "seconds": spent, "bytes_per_s": moved / spent,
            "of_copy": moved / spent / rate, "target": target}


def kernels(xp: Any, n: int) -> Iterator[dict[str, Any]]:
    arrays = sets(xp, n)
    rate = copy_rate(xp, arrays)
    yield row("copy on the device", n, 8 * n, 8 * n / rate, rate)
    for case in cases(xp, n):
        yield row(case.name, n, case.moved, seconds(xp, case.call, arrays), rate, case.target)
    yield from torch_top_k(xp, n, arrays, rate)


def torch_top_k(xp: Any, n: int, arrays: list[Any], rate: float) -> Iterator[dict[str, Any]]:
    """PyTorch's exact top-k of |gradient|, timed in the same way."""
    try:
        import torch
    except ImportError:
        yield {"case": "torch.topk of |gradient|", "skipped": "PyTorch is not installed"}
        return
    stream, k = torch.cuda.ExternalStream(xp.cuda.get_current_stream().ptr), max(1, int(n * DENSITY))
    tensors = [torch.as_tensor(one["grad"], device="cuda") for one in arrays]
    with torch.cuda.stream(stream):
        spent = seconds(xp, lambda tensor: torch.topk(tensor.abs(), k, sorted=False), tensors)
    yield row("torch.topk of |gradient|", n, 4 * n, spent, rate)


def staging(xp: Any, nbytes: int = 100_000_000) -> Iterator[dict[str, Any]]:
    """A vector through pinned host memory and back, in pieces, beside one pinned copy each way after the other."""
    from mpicomp.device import device_of
    from mpicomp.mpi.staging import Stage

    x = xp.zeros(nbytes // 4, xp.float32)
    device = device_of(x)
    stage, host = Stage(device), device.pinned(nbytes).view("float32")

    def there_and_back() -> None:
        device.wait(device.start_to_host(host, x))
        device.wait(device.start_to_device(x, host))

    plain, staged = wall(there_and_back), wall(lambda: stage.run(x, lambda piece, begin: None))
    yield {"case": "staging of 100 MB, no work", "elements": x.size, "moved_bytes": 2 * nbytes, "seconds": staged,
           "bytes_per_s": 2 * nbytes / staged, "of_pinned_copy": plain / staged, "target": 0.8}


def wall(call: Callable[[], Any]) -> float:
    """Seconds of a call that ends when all is done: the median of some."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(sizes: list[int]) -> int:
    import cupy

    for part in (staging(cupy), *(kernels(cupy, n) for n in sizes)):
        for result in part:
            print(json.dumps(result), flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
    return 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or list(SIZES)))
