"""All-gather of index and value pairs, in one message a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..values import Array, Compensated, Exchanged, Mean, Sent


class Gather:
    """Every rank receives every rank's pairs and adds them, worker by worker in rank order.

    Schedule: one all-gather of messages of varying length, ``[indices | codes]`` (before them one int64 count a
    worker where a rank holds several workers).
    Cost: a rank receives the pairs of all others, (size-1) k pairs: it grows with the number of ranks, and the
    union of the coordinates with it (gradient build-up). Memory: one dense vector for the sum.
    Restrictions: none; codes need not be addable.
    Reference: Lin et al., Deep Gradient Compression, ICLR 2018; cost in Li and Hoefler, PPoPP 2022.
    """

    name = "gather"
    options = ()
    reference = "Lin et al. 2018; Li and Hoefler 2022"
    wire = "(p-1) k (v + i)"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._chosen = [step.selector.select(u, step.spans, step.ops) for u in workers]
        self._values = [u.at(indices, step.ops) for u, indices in zip(workers, self._chosen, strict=True)]
        return [step.ops.count_nonfinite(values)[0] for values in self._values]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        self._codes = [step.codec.encode(values, step.ops) for values in self._values]
        decoded = [step.codec.decode(codes, step.dtype, step.ops) for codes in self._codes]
        return [Sent(indices, values) for indices, values in zip(self._chosen, decoded, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        indices = [s.indices for s in sent]
        flat, nbytes = step.comm.gather_to_all(_pack(indices, self._codes, step.ops))
        messages = list(self._unpack(flat, nbytes, step))
        total = step.zeroed("gather-total", step.n, step.dtype)
        for where, codes in messages:
            step.ops.scatter_add(total, where, step.codec.decode(codes, step.dtype, step.ops))
        union = step.ops.union([where for where, _ in messages], step.n)
        mean = step.ops.empty(union.size, step.dtype)
        step.ops.gather(None, total, union, mean)
        step.ops.clear(total, union)
        payload = 8.0 * sum(i.nbytes + c.nbytes for i, c in zip(indices, self._codes, strict=True)) / len(sent)
        return Exchanged(Mean(union, step.scale(mean), step.n), sent, payload)

    def _unpack(self, flat: Array, nbytes: list[int], step: Any) -> Iterator[tuple[Array, Array]]:
        """Every worker's indices and codes, in rank order."""
        n, code_dtype = step.n, self._codes[0].dtype
        index_dtype = step.ops.index_dtype(n)
        pair = index_dtype.itemsize + code_dtype.itemsize
        at = 0
        for rank, length in enumerate(nbytes):
            message = flat[at : at + length]
            at += length
            counts = _counts(message, step.workers[rank], pair, step.ops)
            header = length - pair * sum(counts)
            where = _cut(message[header:], counts, index_dtype, step.ops)
            codes = _cut(message[header + index_dtype.itemsize * sum(counts) :], counts, code_dtype, step.ops)
            yield from zip(where, codes, strict=True)


def _pack(indices: list[Array], codes: list[Array], ops: Any) -> Array:
    """One message, as bytes: a count a worker where there are several, all indices, all codes."""
    parts = [a.view(np.uint8) for a in (*indices, *codes)]
    if len(indices) > 1:
        parts.insert(0, ops.from_host(np.array([i.size for i in indices], np.int64).view(np.uint8)))
    return ops.concatenate(parts, np.dtype(np.uint8))


def _counts(message: Array, workers: int, pair: int, ops: Any) -> list[int]:
    if workers == 1:
        return [message.size // pair]
    return np.array(ops.to_host(message[: 8 * workers])).view(np.int64).tolist()


def _cut(part: Array, counts: list[int], dtype: np.dtype, ops: Any) -> list[Array]:
    """Aligned copies of consecutive runs of ``counts`` elements that begin at the front of ``part``."""
    arrays, at = [], 0
    for count in counts:
        array = ops.empty(count, dtype)
        array.view(np.uint8)[:] = part[at : at + array.nbytes]
        arrays.append(array)
        at += array.nbytes
    return arrays
