"""Times of kernels on a GPU, beside what its memory allows: ``python tests/gpu/bench.py [N ...]``; a JSON line a case.

Each case works on copies of its arrays in turn, together larger than the cache, so that every call reads memory; times
are the device's alone (timing.py). "must move" are the bytes that have to be read or written once; a copy of the same
arrays' bytes is measured first, and a case's rate is given as a share of that. A case's outputs are overwritten first,
and then compared with those of CuPy's own functions. A case that fails is reported, and the others go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from models import resnet50
from timing import Busy, seconds, wall

CACHES = 4  # times the cache that the copies of a case's arrays take
CHUNK, DENSITY, BETA = 112, 0.001, 0.1
BOUND = 0.01
LAM, SCALE, LEVELS = 4.65, 4.0, 7  # |N(0, 2)| is above LAM with probability 0.001
TENSORS, ROW, WIDTH = 161, 64, 4
STAGED = 100_000_000  # bytes
SIZES = (25_000_000, 400_000_000)
AGAINST, FASTER = "exact top-k, 0.1 %, of the gradient alone", 5  # times torch.topk's speed that is aimed at
BEYOND = 150e-6  # seconds that a step's work on the device may take beyond its memory's time

Call = Callable[[Any], Any]


class Case(NamedTuple):
    """A timed operation on one set of arrays; it must read or write ``moved`` bytes."""

    name: str
    moved: int
    call: Call
    target: float | None = None  # share of the copy's rate that is aimed at
    right: Callable[[Any, Any], bool] | None = None  # of the arrays after a call, and what it returned
    writes: tuple[str, ...] = ()


def sets(xp: Any, n: int) -> list[dict[str, Any]]:
    """Sets of arrays, enough to exceed the cache several times, at least two."""
    from mpicomp.ops import gpu

    cache = xp.cuda.Device().attributes["L2CacheSize"]
    count = max(2, min(8, -(-CACHES * cache // (12 * n))))
    made = []
    for seed in range(count):
        generator = xp.random.default_rng(seed)
        memory, grad = (generator.standard_normal(n, dtype=xp.float32) for _ in range(2))
        positions = xp.empty(-(-n // CHUNK), xp.uint8)
        gpu.chunk_max(memory, grad, [(0, grad.size, CHUNK)], positions)
        indices = xp.empty(positions.size, gpu.index_dtype(n))
        gpu.chunk_indices(positions, [(0, n, CHUNK)], n, indices)
        values = xp.empty(indices.size, xp.float32)
        gpu.gather(memory, grad, indices, values)
        made.append({"memory": memory, "grad": grad, "out": xp.empty_like(grad), "positions": positions,
                     "indices": indices, "values": values, "bits": xp.empty((n + 7) // 8, xp.uint8)})
    return made


def cases(xp: Any, n: int) -> list[Case]:
    """The figures of the kernels, float32; ``s`` is one set of arrays."""
    from mpicomp.ops import gpu
    from mpicomp.ops.block_codes import block_codes_nbytes
    from mpicomp.ops.error_bound import bounded_capacity

    message, blocks = xp.empty(n + 4, xp.uint8), xp.empty(block_codes_nbytes(n, "int8"), xp.uint8)
    stream = xp.empty(bounded_capacity(n, "float32"), xp.uint8)
    k, groups = max(1, int(n * DENSITY)), gpu.group_bounds(np.array([*range(0, n, 512), n], np.int64))
    scales, levels = xp.full(groups.size - 1, SCALE, xp.float32), xp.empty(-(-n * 4 // 8), xp.uint8)
    key, below, above = gpu.Key(1, 2, 3), xp.empty_like(scales), xp.empty_like(scales)
    tensors = [(i * n // TENSORS, (i + 1) * n // TENSORS) for i in range(TENSORS)]
    products = xp.empty(sum(-(-(stop - start) // ROW) for start, stop in tensors) * WIDTH, xp.float32)

    def encode(s: Any) -> None:
        gpu.pack_levels(s["grad"], groups, scales, LEVELS, 4, 0, key, levels)

    def with_norms(s: Any) -> None:
        gpu.group_norms(s["grad"], groups, "l2", below)
        encode(s)

    def with_means(s: Any) -> None:
        gpu.group_means(s["grad"], groups, below, above)
        gpu.pack_signs(s["grad"], s["bits"])

    whole = gpu.group_bounds(np.array([0, n]))

    def in_blocks(s: Any, _: Any) -> bool:
        gpu.decode_blocks(blocks, "int8", s["out"])
        return bool((xp.abs(s["out"] - s["grad"]) <= float(xp.abs(s["grad"]).max()) / 253).all())

    def in_bounds(s: Any, found: tuple[int, int]) -> bool:
        gpu.decode_bounded(stream[: found[0]], BOUND, 1, s["out"])
        return bool((xp.abs(s["out"] - s["grad"]) <= 1.0001 * BOUND).all())

    def in_powers(s: Any, _: Any) -> bool:
        gpu.decode_natural(message, s["out"], True)
        return bool((xp.abs(s["out"] - s["grad"]) <= xp.abs(s["grad"])).all())

    def update(s: Any) -> None:
        gpu.masked_update(s["memory"], s["grad"], s["indices"], s["values"], BETA)

    def updated(s: Any, _: Any) -> bool:
        before, grad, at = s["memory"].copy(), s["grad"], s["indices"]
        update(s)
        expected = before + BETA * grad
        expected[at] = (1 - BETA) * before[at] + BETA * (before[at] + grad[at] - s["values"])
        return bool((xp.abs(s["memory"] - expected) <= 1e-5 * (1 + xp.abs(expected))).all())

    def decoded(s: Any, _: Any) -> bool:
        gpu.unpack_levels(levels, groups, scales, LEVELS, 4, s["out"])
        return bool((xp.abs(s["out"] - xp.clip(s["grad"], -SCALE, SCALE)) <= 1.0001 * SCALE / LEVELS).all())

    return [
        Case("compensate + chunk-max", 8 * n,
             lambda s: gpu.chunk_max(s["memory"], s["grad"], [(0, s["grad"].size, CHUNK)], s["positions"]), 0.85,
             lambda s, _: chunks_are_right(xp, s), ("positions",)),
        Case("threshold compaction, 0.1 %", 8 * n,
             lambda s: gpu.threshold(s["memory"], s["grad"], [(0, s["grad"].size)], [LAM])[0], 0.75,
             lambda s, found: bool((found == xp.flatnonzero(xp.abs(s["memory"] + s["grad"]) >= LAM)).all())),
        Case("exact top-k, 0.1 %", 8 * n, lambda s: gpu.top_k(s["memory"], s["grad"], [(0, s["grad"].size)], [k]), None,
             lambda s, found: largest_are_right(xp, xp.abs(s["memory"] + s["grad"]), found, k)),
        Case(AGAINST, 4 * n, lambda s: gpu.top_k(None, s["grad"], [(0, s["grad"].size)], [k]), None,
             lambda s, found: largest_are_right(xp, xp.abs(s["grad"]), found, k)),
        Case("one-bit encode", 4 * n + n // 8, lambda s: gpu.pack_signs(s["grad"], s["bits"]), 0.70,
             lambda s, _: bool((s["bits"] == xp.packbits(~xp.signbit(s["grad"]), bitorder="little")).all()), ("bits",)),
        Case("one-bit encode, with means of groups of 512", 8 * n + n // 8, with_means),
        Case("QSGD encode, 4 bits", 4 * n + n // 2, encode, 0.70, decoded, ("out",)),
        Case("QSGD encode, 4 bits, with norms of groups of 512", 8 * n + n // 2, with_norms),
        Case("QSGD decode, 4 bits", 4 * n + n // 2,
             lambda s: gpu.unpack_levels(levels, groups, scales, LEVELS, 4, s["out"])),
        Case("natural encode, with the largest magnitude", 9 * n,
             lambda s: gpu.encode_natural(s["grad"], whole, 0, key, message), None, in_powers, ("out",)),
        Case("natural decode", 5 * n, lambda s: gpu.decode_natural(message, s["out"], True)),
        Case("block codes encode, int8", 5 * n + n // 64,
             lambda s: gpu.encode_blocks(s["grad"], "int8", blocks), None, in_blocks, ("out",)),
        Case("block codes decode, int8", 5 * n + n // 64, lambda s: gpu.decode_blocks(blocks, "int8", s["out"])),
        Case(f"error-bounded encode, bound {BOUND}", 8 * n,
             lambda s: gpu.encode_bounded(s["grad"], BOUND, 1, stream), None, in_bounds, ("out",)),
        Case("count non-finite", 4 * n, lambda s: gpu.count_nonfinite(s["grad"]), None,
             lambda _, found: found == (0, -1)),
        Case(f"moments of {TENSORS} tensors", 8 * n, lambda s: gpu.moments(s["memory"], s["grad"], tensors, 0.0)),
        Case("Gaussian-k's search, 0.1 %", 24 * n,
             lambda s: gpu.select_normal(s["memory"], s["grad"], [(0, n)], [k])),
        Case("SIDCo's search, 0.1 %", 30 * n,
             lambda s: gpu.select_exponential(s["memory"], s["grad"], [(0, n)], [k])),
        Case(f"projections of {TENSORS} tensors' rows of {ROW}", 8 * n + products.nbytes,
             lambda s: gpu.project_rows(s["memory"], s["grad"], tensors, ROW, WIDTH, 1, products)),
        Case("cupy.argpartition of |gradient|", 4 * n, lambda s: xp.argpartition(xp.abs(s["grad"]), n - k)),
        Case("add", 12 * n, lambda s: gpu.add(s["out"], s["grad"])),
        Case("masked update", 12 * n, update, 0.85, updated),  # the last one: it changes what the others read
    ]


def chunks_are_right(xp: Any, s: Any) -> bool:
    whole = s["grad"].size // CHUNK
    sums = xp.abs(s["memory"][: whole * CHUNK] + s["grad"][: whole * CHUNK]).reshape(whole, CHUNK)
    return bool((sums.argmax(1) == s["positions"][:whole]).all())


def largest_are_right(xp: Any, sizes: Any, found: Any, k: int) -> bool:
    """Ascending, k of them, and none that is left out is larger."""
    cut = sizes[found].min()
    ascend = bool((found[1:] > found[:-1]).all())
    return found.size == k and ascend and int((sizes[found] > cut).sum()) == int((sizes > cut).sum())


def is_right(xp: Any, case: Case, s: Any) -> bool | None:
    """Return True if a call writes the right result over arrays that held none of it."""
    for name in case.writes:
        s[name].view(xp.uint8).fill(0xA5)
    found = case.call(s)
    return None if case.right is None else case.right(s, found)


def copy_rate(xp: Any, arrays: list[Any], busy: Busy) -> float:
    """Bytes read and written a second by a copy on the device."""
    nbytes = 2 * arrays[0]["grad"].nbytes
    return nbytes / seconds(xp, lambda s: xp.copyto(s["out"], s["grad"]), arrays, busy)[0]


def row(name: str, n: int, moved: int, spent: tuple[float, bool], rate: float,
        target: float | None = None) -> dict[str, Any]:
    """One result: seconds, bytes per second, and the share of a copy's bytes per second."""
    time, ahead = spent
    return {"case": name, "elements": n, "moved_bytes": moved, "seconds": time, "bytes_per_s": moved / time,
            "of_copy": moved / time / rate, "target": target, "queued_ahead": ahead}


def kernels(xp: Any, n: int) -> Iterator[dict[str, Any]]:
    arrays, busy = sets(xp, n), Busy(xp)
    rate = copy_rate(xp, arrays, busy)
    yield row("copy on the device", n, 8 * n, (8 * n / rate, True), rate)
    ours = None
    for case in cases(xp, n):
        try:
            right = is_right(xp, case, arrays[0])
            found = row(case.name, n, case.moved, seconds(xp, case.call, arrays, busy), rate, case.target)
        except Exception as error:  # of any class: it is reported as a failure, and the other figures are measured
            found, right = failure(f"{case.name}, {n} elements", error), False
        if case.name == AGAINST:
            ours = found.get("seconds")
        yield found if right is None else {**found, "passed": right}
    yield from torch_top_k(xp, n, arrays, rate, busy, ours)


def failure(case: str, error: Exception) -> dict[str, Any]:
    return {"case": case, "error": f"{type(error).__name__}: {error}", "passed": False}


def torch_top_k(xp: Any, n: int, arrays: list[Any], rate: float, busy: Busy,
                ours: float | None) -> Iterator[dict[str, Any]]:
    """PyTorch's exact top-k of |gradient|, timed in the same way."""
    try:
        import torch
    except ImportError:
        yield {"case": "torch.topk of |gradient|", "skipped": "PyTorch is not installed"}
        return
    stream, k = torch.cuda.ExternalStream(xp.cuda.get_current_stream().ptr), max(1, int(n * DENSITY))
    tensors = [torch.as_tensor(one["grad"], device="cuda") for one in arrays]
    with torch.cuda.stream(stream):
        spent = seconds(xp, lambda tensor: torch.topk(tensor.abs(), k, sorted=False), tensors, busy)
    found = row("torch.topk of |gradient|", n, 4 * n, spent, rate)
    yield {**found, "times_ours": found["seconds"] / ours, "least_times_ours": FASTER} if ours else found


def staging(xp: Any, nbytes: int = STAGED) -> Iterator[dict[str, Any]]:
    """A vector through pinned host memory and back, in pieces, beside one pinned copy each way after the other."""
    from mpicomp.comm.staging import Stage
    from mpicomp.ops.device import device_of

    x = xp.zeros(nbytes // 4, xp.float32)
    device = device_of(x)
    stage, host = Stage(device), device.pinned(nbytes).view("float32")

    def there_and_back() -> None:
        device.wait(device.start_to_host(host, x))
        device.wait(device.start_to_device(x, host))

    plain, staged = wall(there_and_back), wall(lambda: stage.run(x, lambda piece, begin: None))
    yield {"case": f"staging of {nbytes / 1e6:g} MB, no work", "elements": x.size, "moved_bytes": 2 * nbytes,
           "seconds": staged, "bytes_per_s": 2 * nbytes / staged, "of_pinned_copy": plain / staged, "target": 0.8}


def scalecom(xp: Any, most: int) -> Iterator[dict[str, Any]]:
    """Operations that a leader's step of ``scalecom`` queues for ResNet-50's tensors, from gradients to means.

    Layers are narrower if fewer elements than 1 million are to be measured elsewhere: a try-out.
    """
    from mpicomp.ops import gpu

    shapes, busy = resnet50(1 if most >= 1_000_000 else 64), Busy(xp)

    def made(seed: int) -> dict[str, Any]:
        generator = xp.random.default_rng(seed)
        grads = [generator.standard_normal(shape, dtype=xp.float32) for shape in shapes]
        n = sum(grad.size for grad in grads)
        chunks = -(-n // CHUNK)
        return {"grads": grads, "means": [xp.empty_like(grad) for grad in grads], "n": n,
                **{name: xp.zeros(n, xp.float32) for name in ("flat", "memory", "grad", "out")},
                "positions": xp.empty(chunks, xp.uint8), "indices": xp.empty(chunks, gpu.index_dtype(n)),
                "values": xp.empty(chunks, xp.float32)}

    def step(s: Any) -> None:
        gpu.pack([grad.reshape(-1) for grad in s["grads"]], s["flat"])
        gpu.chunk_max(s["memory"], s["flat"], [(0, s["flat"].size, CHUNK)], s["positions"])
        gpu.chunk_indices(s["positions"], [(0, s["n"], CHUNK)], s["n"], s["indices"])
        gpu.gather_counted(s["memory"], s["flat"], s["indices"], s["values"])
        gpu.masked_update(s["memory"], s["flat"], s["indices"], s["values"], BETA)
        gpu.unpack_sparse(s["indices"], s["values"], [mean.reshape(-1) for mean in s["means"]])

    arrays = [made(seed) for seed in range(2)]
    n = arrays[0]["n"]
    rate, moved = copy_rate(xp, arrays, busy), 32 * n  # packing 8, selection 8, update 12, means 4
    found = row(f"ScaleCom's device work (leader), ResNet-50's {len(shapes)} tensors", n, moved,
                seconds(xp, step, arrays, busy), rate)
    yield {**found, "beyond_memory_s": found["seconds"] - moved / rate, "most_beyond_s": BEYOND}


def main(sizes: list[int]) -> int:
    import cupy

    parts = {"staging": partial(staging, nbytes=min(STAGED, 4 * max(sizes)))}
    parts |= {f"{n}": partial(kernels, n=n) for n in sizes[:1]} | {"scalecom": partial(scalecom, most=max(sizes))}
    parts |= {f"{n}": partial(kernels, n=n) for n in sizes[1:]}  # the longest last: they may be cut
    wrong = 0
    for name, part in parts.items():
        for result in told(name, part(cupy)):
            print(json.dumps(result), flush=True)
            wrong += result.get("passed") is False
        cupy.get_default_memory_pool().free_all_blocks()
    return 1 if wrong else 0


def told(part: str, results: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A part's results, and the error if it did not finish."""
    try:
        yield from results
    except Exception as error:
        yield failure(part, error)


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or list(SIZES)))
