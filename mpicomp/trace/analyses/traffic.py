"""Traffic of the communications: bytes, bandwidth, and bytes between pairs of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import InvalidArgument
from .. import tables
from ..tables import Result, Table
from .arrivals import lateness_of, worst_pair
from .frame import ALLREDUCE_KINDS, Frame, Given, choose, collective_kinds, compact, grouped, opened, quantiles

_LARGEST_MATRIX = 4096  # rows; beyond it the matrix is of nodes


def collectives(path: Given) -> Result:
    """Count, time and bandwidth of each kind of communication by algorithm, scheme and size.

    Of each call that ranks made together, ``time`` is the shortest rank's, which came last and did not wait.
    ``slowest`` is the longest rank's, waiting included. Bandwidths are of ``time``: ``algbw`` = dense bytes / time,
    and ``busbw`` = algbw x 2 (p-1)/p, for dense all-reduces. Only ``wait`` (mean arrival to last arrival) compares
    clocks: it is NaN if it is below their uncertainty.

    Returns
    -------
    dict
        Table ``collectives``: ``kind algo scheme op dtype size_bin calls ranks time p90 slowest wait total nbytes
        sent algbw busbw``: medians over calls (ns, bytes, GB/s); ``total`` is ns of all ranks; longest total first.
    """
    with opened(path) as frame:
        doubt = worst_pair(frame)
        parts = [_of_kind(frame, kind, doubt) for kind in collective_kinds(frame)]
        parts = [part for part in parts if len(part["calls"])]
        if not parts:
            return {"collectives": {}, "clock_uncertainty": doubt}
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(-table["total"], kind="stable")
        return {"collectives": {name: column[order] for name, column in table.items()}, "clock_uncertainty": doubt}


def _each_call(frame: Frame, kind: str) -> Table:
    """For each call: its first row in /events, ranks, shortest and longest duration, sum and wait."""
    rows, call, arrival, _ = lateness_of(frame, kind)
    lasted = frame.duration[rows]
    numbers, starts, (ordered, of_row, sent) = grouped(call, lasted, rows, frame.column("nbytes_sent")[rows])
    if not len(starts):
        return dict.fromkeys(("row", "ranks", "time", "slowest", "sum", "wait", "sent"), starts)
    ends = np.append(starts[1:], len(ordered))
    number = np.searchsorted(numbers, call)
    from_first = arrival - arrival.min()
    latest = np.zeros(len(starts), np.int64)
    np.maximum.at(latest, number, from_first)
    return {
        "row": of_row[starts],
        "ranks": ends - starts,
        "time": ordered[starts],
        "slowest": ordered[ends - 1],
        "sum": np.add.reduceat(ordered, starts),
        "wait": latest - np.bincount(number, from_first) / (ends - starts),
        "sent": np.maximum.reduceat(sent, starts).astype(np.float64),
    }


def _of_kind(frame: Frame, kind: str, doubt: int) -> Table:
    each = _each_call(frame, kind)
    row = each["row"]
    dense = frame.column("nbytes_dense")[row]
    fields = {name: frame.column(name)[row] for name in ("algo", "scheme", "op", "dtype")}
    group, keys = compact(*fields.values(), tables.size_bin(dense))
    named = {name: _names(frame, name)[code] for name, code in zip(fields, keys[:-1], strict=True)}
    count = np.bincount(group)
    medians = {name: quantiles(group, each[name], 0.5)[1][0] for name in ("time", "slowest", "wait", "sent", "ranks")}
    nbytes = quantiles(group, dense, 0.5)[1][0]
    algbw = _rate(nbytes, medians["time"])
    share = 2 * (medians["ranks"] - 1) / np.maximum(medians["ranks"], 1)
    return {
        "kind": np.full(len(count), kind),
        **named,
        "size_bin": keys[-1],
        "calls": count,
        "ranks": medians["ranks"].astype(np.int64),
        "time": medians["time"],
        "p90": quantiles(group, each["time"], 0.9)[1][0],
        "slowest": medians["slowest"],
        "wait": np.where(medians["wait"] > doubt, medians["wait"], np.nan),
        "total": np.bincount(group, each["sum"]),
        "nbytes": nbytes,
        "sent": medians["sent"],
        "algbw": algbw,
        "busbw": np.where((kind in ALLREDUCE_KINDS) & (named["scheme"] == "none"), algbw * share, np.nan),
    }


def _names(frame: Frame, field: str) -> np.ndarray:
    return np.array(frame.trace.vocabulary(field))


def _rate(nbytes: np.ndarray, ns: np.ndarray) -> np.ndarray:
    """GB/s; NaN without bytes or time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((nbytes > 0) & (ns > 0), nbytes / ns, np.nan)


def bandwidth(path: Given) -> Result:
    """Bus bandwidth of the dense all-reduces by algorithm and size, and a model of latency and bandwidth.

    A call's time is its shortest rank's, as in ``collectives``, so no clocks are compared. The model is
    ``time = latency + nbytes / bandwidth``, fitted to the medians by relative error; None below three sizes.

    Returns
    -------
    dict
        Table ``bandwidth``: ``algo nbytes calls time p10 median p90`` (ns; GB/s of busbw), table ``model``: ``algo
        latency busbw half_size``: ns, GB/s, and the bytes at which half of it is reached.
    """
    with opened(path) as frame:
        parts = [_each_call(frame, kind) for kind in collective_kinds(frame) if kind in ALLREDUCE_KINDS]
        row, time, ranks = (np.concatenate([part[name] for part in parts] or [np.empty(0, np.int64)])
                            for name in ("row", "time", "ranks"))  # fmt: skip
        nbytes = frame.column("nbytes_dense")[row]
        good = (nbytes > 0) & (time > 0) & frame.dense[row]
        row, time, ranks, nbytes = row[good], time[good], ranks[good], nbytes[good]
        group, (algo, size) = compact(frame.column("algo")[row], nbytes)
        bus = nbytes / np.maximum(time, 1) * 2 * (ranks - 1) / np.maximum(ranks, 1)
        low, middle, high = quantiles(group, bus, 0.1, 0.5, 0.9)[1]
        median_time = quantiles(group, time, 0.5)[1][0]
        names = _names(frame, "algo")
        table = {"algo": names[algo], "nbytes": size, "calls": np.bincount(group, minlength=len(algo)),
                 "time": median_time, "p10": low, "median": middle, "p90": high}  # fmt: skip
        share = 2 * (float(np.median(ranks)) - 1) / float(np.median(ranks)) if len(ranks) else 0.0
        models = [_model(names[code], size[algo == code], median_time[algo == code], share) for code in np.unique(algo)]
        return {
            "bandwidth": table,
            "model": tables.of_rows(models),
            "clock_uncertainty": None,
        }


def _model(name: str, nbytes: np.ndarray, time: np.ndarray, share: float) -> Result:
    result = {"algo": name, "latency": np.nan, "busbw": np.nan, "half_size": np.nan}
    if len(nbytes) < 3:
        return result
    x = nbytes.astype(np.float64)
    matrix = np.stack([1 / time, x / time], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(matrix, np.ones(len(x)), rcond=None)
    if per_byte > 0:
        result |= {"latency": max(float(latency), 0.0), "busbw": share / per_byte,
                   "half_size": max(float(latency), 0.0) / per_byte}  # fmt: skip
    return result


def matrix(path: Given, by: str = "auto") -> Result:
    """Bytes between ranks or nodes, by the schedules of ring, halving_doubling and direct all-reduces.

    The trace records the bytes that a rank sent; the receivers follow from the algorithm's schedule (``attributed``).
    Bytes sent in other ways (MPI's own collectives, compressed messages) have no known receiver and are
    ``unattributed``.

    Parameters
    ----------
    by : str
        ``rank``, ``node``, or ``auto``: ranks, up to 64 of them.

    Returns
    -------
    dict
        ``matrix`` [from, to] in bytes, ``by``, ``attributed``, ``unattributed``, ``between_nodes`` (part of the
        attributed bytes), table ``ranks``: ``rank sent received``, as recorded.
    """
    with opened(path) as frame:
        choose("by", by, ("auto", "rank", "node"))
        by = ("rank" if frame.n_ranks <= 64 else "node") if by == "auto" else by
        if by == "rank" and frame.n_ranks > _LARGEST_MATRIX:
            raise InvalidArgument(f"a matrix of {frame.n_ranks} ranks is too large to show: use by=node")
        node = frame.trace.table("ranks", ["node"])["node"].astype(np.int64)
        place = np.arange(frame.n_ranks) if by == "rank" else node - min(0, int(node.min()))
        size = int(place.max()) + 1
        result, attributed, across = np.zeros((size, size)), 0.0, 0.0
        for source, target, nbytes in _messages(frame):
            result += np.bincount(place[source] * size + place[target], nbytes, size * size).reshape(size, size)
            attributed += float(nbytes.sum())
            across += float(nbytes[node[source] != node[target]].sum())
        carries = frame.carriers
        sent, received = (np.bincount(frame.rank, frame.column(name) * carries, frame.n_ranks)
                          for name in ("nbytes_sent", "nbytes_recv"))  # fmt: skip
        return {
            "by": by,
            "matrix": result,
            "attributed": attributed,
            "unattributed": max(0.0, float(sent.sum()) - attributed),
            "between_nodes": across / attributed if attributed else None,
            "ranks": {"rank": np.arange(frame.n_ranks), "sent": sent, "received": received},
            "clock_uncertainty": None,
        }


def _messages(frame: Frame) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Senders, receivers and bytes of all messages, for each algorithm with a known schedule."""
    algo = frame.column("algo")
    made = frame.dense & np.isin(frame.kind, [frame.code(kind) for kind in ALLREDUCE_KINDS if frame.code(kind) >= 0])
    for name, schedule in _SCHEDULES.items():
        chosen = made & (algo == frame.trace.code("algo", name)) & frame.carriers
        dense = np.bincount(frame.rank[chosen], frame.column("nbytes_dense")[chosen], frame.n_ranks)
        if dense.any() and frame.n_ranks > 1:
            source, target, share = schedule(frame.n_ranks)
            yield source, target, share * dense[source]


def _ring(p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Senders, receivers and the share of the vector in each message; likewise the functions below."""
    rank = np.arange(p)
    return rank, (rank + 1) % p, np.full(p, 2 * (p - 1) / p)


def _direct(p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target = np.divmod(np.arange(p * p), p)
    return source, target, np.where(source == target, 0.0, 2 / p)


def _halving_doubling(p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pof2 = 1 << (p.bit_length() - 1)
    rem, new = p - pof2, np.arange(pof2)
    real = np.where(new < rem, 2 * new + 1, new + rem)
    masks = [1 << bit for bit in range(pof2.bit_length() - 1)]
    source = [real] * len(masks)
    target = [real[new ^ mask] for mask in masks]
    share = [np.full(pof2, 2 * mask / pof2) for mask in masks]  # halves swap pof2/2 blocks, neighbours one
    even = np.arange(rem) * 2
    return (
        np.concatenate([*source, even, even + 1]),  # folded ranks send and receive whole vectors
        np.concatenate([*target, even + 1, even]),
        np.concatenate([*share, np.ones(2 * rem)]),
    )


_SCHEDULES = {"ring": _ring, "direct": _direct, "halving_doubling": _halving_doubling}
