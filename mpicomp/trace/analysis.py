"""What a trace says: each function takes a path and returns plain dicts, lists and numbers (times in ns)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import schema, tables
from .read import Source, Trace, open_trace
from .totals import BYTES, Totals


def info(path: Source) -> dict[str, Any]:
    """The run card: who ran what, how much was recorded, and what is missing."""
    with open_trace(path) as trace:
        return _info(trace)


def summary(path: Source, by: Sequence[str] = ("kind", "algo", "scheme", "size_bin")) -> list[dict[str, Any]]:
    """Time and bytes for each combination of the columns in ``by``, longest total first."""
    with open_trace(path) as trace:
        return _summary(trace, by)


def phases(path: Source) -> list[dict[str, Any]]:
    """Time of each kind of event and its share of the time that the ranks recorded."""
    with open_trace(path) as trace:
        return phases_of(trace)


def traffic(path: Source) -> dict[str, Any]:
    """Bytes that a rank sends in a step, and how much less that is than a dense all-reduce needs."""
    with open_trace(path) as trace:
        return traffic_of(trace)


def imbalance(path: Source) -> dict[str, Any]:
    """How late each rank comes to the collectives, against the median rank."""
    with open_trace(path) as trace:
        return _imbalance(trace)


def metrics(path: Source) -> dict[str, dict[str, Any]]:
    """Each metric: first, last, least, and its course as the mean over ranks at each step."""
    with open_trace(path) as trace:
        return _metrics(trace)


def report(path: Source) -> dict[str, Any]:
    """All of the above in one dict, as ``mpicomp trace report --json`` prints it."""
    with open_trace(path) as trace:
        return {
            "run": _info(trace),
            "phases": phases_of(trace),
            "steps": _steps(trace),
            "traffic": traffic_of(trace),
            "imbalance": _imbalance(trace),
            "metrics": _metrics(trace),
        }


def _info(trace: Trace) -> dict[str, Any]:
    ranks = trace.table("ranks", ["n_events", "n_dropped"])
    status = trace.status()
    begin, end, n_backwards = _extent(trace)
    return {
        **trace.attributes,
        "n_events": int(ranks["n_events"].sum()),
        "n_dropped": int(ranks["n_dropped"].sum()),
        "files": len(trace.files),
        "duration": end - begin,
        "hosts": list(dict.fromkeys(filter(None, trace.hostnames()))),
        "clock_uncertainty": trace.clock_uncertainty(),
        "n_backwards": n_backwards,
        "ranks_not_closed": {rank: state for rank, state in enumerate(status) if state != "closed"},
        "missing_parts": trace.missing_parts,
    }


def _extent(trace: Trace) -> tuple[int, int, int]:
    """The first begin and the last end of any event, over all ranks, and how many events end before they begin."""
    begins, ends, n_backwards = [], [], 0
    for part in trace.parts():
        events = part.events("rank", "t_start", "t_end")
        if len(events["rank"]):
            begins.append(int(part.corrected(events["rank"], events["t_start"]).min()))
            ends.append(int(part.corrected(events["rank"], events["t_end"]).max()))
            n_backwards += int(np.sum(events["t_end"] < events["t_start"]))
    return min(begins, default=0), max(ends, default=0), n_backwards


def _summary(trace: Trace, by: Sequence[str]) -> list[dict[str, Any]]:
    by = tuple(by)
    wanted = {"t_start", "t_end", *BYTES, *by} - {"size_bin"}
    totals = Totals()
    for part in trace.parts():
        totals.add(by, part.events(*sorted(wanted)))
    names = {field: trace.vocabulary(field) for field in by if field in schema.LABEL_FIELDS}
    rows = []
    for values, durations, nbytes in totals.rows():
        key = {name: names[name][value] if name in names else value for name, value in zip(by, values, strict=True)}
        rows.append(key | quantities(durations) | nbytes)
    return sorted(rows, key=lambda row: -row["total"])


def quantities(duration: np.ndarray) -> dict[str, Any]:
    """How many durations there are, their percentiles, least, greatest and sum, as all tables have them."""
    median, p90, p99 = (float(value) for value in np.percentile(duration, [50, 90, 99]))
    return {
        "count": len(duration),
        "median": median,
        "p90": p90,
        "p99": p99,
        "min": int(duration.min()),
        "max": int(duration.max()),
        "total": int(duration.sum()),
    }


def phases_of(trace: Trace) -> list[dict[str, Any]]:
    """Phases inside another (an all-reduce inside an exchange) count in both: shares need not add up to 1."""
    rows = _summary(trace, ("kind",))
    outermost = trace.table("steps")  # app and reducer may both mark a step: it is to count once
    for row in rows:
        if row["kind"] == "step" and len(outermost["step"]):
            row |= quantities(outermost["t_end"] - outermost["t_start"])
    whole = _rank_time(trace)
    rows = [row | {"share": row["total"] / whole if whole else 0.0} for row in rows]
    return sorted(rows, key=lambda row: -row["total"])


def _rank_time(trace: Trace) -> int:
    """Time from the first to the last event of a rank, summed over ranks."""
    whole = 0
    for part in trace.parts():
        events = part.events("rank", "t_start", "t_end")
        for _, rows in tables.groups(events["rank"]):
            whole += int(events["t_end"][rows].max() - events["t_start"][rows].min())
    return whole


def _steps(trace: Trace) -> dict[str, Any]:
    """Durations of the steps: a step lasts as long as its slowest rank."""
    table = trace.table("steps")
    order, starts = tables.blocks(table["step"])
    if not len(order):
        return {"count": 0}
    longest = np.maximum.reduceat((table["t_end"] - table["t_start"])[order], starts)
    first = {"first": int(longest[0])}  # kept apart: it pays for allocation and connections
    return first | quantities(longest)


def traffic_of(trace: Trace) -> dict[str, Any]:
    """Counted on the outermost kind that carries bytes, so that nested events do not count twice."""
    kinds = [kind for kind in ("step", *schema.COLLECTIVE_KINDS) if trace.code("kind", kind) >= 0]
    found: dict[str, list[tuple[int, int, np.ndarray]]] = {kind: [] for kind in kinds}
    for part in trace.parts():  # the events of a rank are all in one
        events = part.events("kind", "rank", "step", "nbytes_dense", "nbytes_sent")
        for kind in kinds:
            rows = np.flatnonzero(events["kind"] == trace.code("kind", kind))
            if len(rows):
                found[kind].append(_sent(events, rows))
    outermost = next((kind for kind in kinds if any(sent for sent, _, _ in found[kind])), None)
    if outermost is None:
        return {"kind": None}
    sent, dense = (sum(part[place] for part in found[outermost]) for place in (0, 1))
    share = 2 * (trace.n_ranks - 1) / trace.n_ranks  # what a bandwidth-optimal all-reduce sends of each dense byte
    return {
        "kind": outermost,
        "nbytes_sent": sent,
        "nbytes_sent_per_rank_and_step": float(np.median(np.concatenate([each for _, _, each in found[outermost]]))),
        "nbytes_dense": dense,
        "compression_rate": share * dense / sent if share * dense else None,
    }


def _sent(events: dict[str, np.ndarray], rows: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Bytes sent and dense bytes of some rows, and the bytes that each rank sends in each step."""
    sent = events["nbytes_sent"][rows]
    order, starts = tables.blocks(events["rank"][rows], events["step"][rows])
    return int(sent.sum()), int(events["nbytes_dense"][rows].sum()), np.add.reduceat(sent[order], starts)


def _imbalance(trace: Trace) -> dict[str, Any]:
    kind = next((kind for kind in schema.COLLECTIVE_KINDS if trace.code("kind", kind) >= 0), None)
    if kind is None or trace.n_ranks < 2:
        return {"kind": None}
    arrival = _arrivals(trace, kind)
    seen = np.sum(~np.isnan(arrival), axis=0) > 1
    arrival = arrival[:, seen]
    if not arrival.size:
        return {"kind": None}
    late = arrival - np.nanmedian(arrival, axis=0)
    lateness = [_median(row) for row in late]
    known = [value for value in lateness if value is not None]
    uncertainty, spread = trace.clock_uncertainty(), max(known) - min(known)
    return {
        "kind": kind,
        "collectives": int(seen.sum()),
        "lateness": lateness,
        "spread": spread,
        "median_wait": float(np.median(np.nanmax(arrival, axis=0) - np.nanmedian(arrival, axis=0))),
        "slowest_rank": int(np.nanargmax([math.nan if value is None else value for value in lateness])),
        "clock_uncertainty": uncertainty,
        "significant": spread > 2 * uncertainty,
    }


def _arrivals(trace: Trace, kind: str) -> np.ndarray:
    """Array (ranks, calls): when each rank came to the n-th call of ``kind``, in ns after the first; NaN if never."""
    found = []
    for part in trace.parts():
        events = part.events("rank", "kind", "seq", "t_start")
        chosen = np.flatnonzero(events["kind"] == trace.code("kind", kind))
        own = events["rank"][chosen]
        found.append((own, events["seq"][chosen].astype(np.int64), part.corrected(own, events["t_start"][chosen])))
    rank, seq, t = (np.concatenate(columns) for columns in zip(*found, strict=True))
    if not len(t) or seq.max() >= len(seq) or rank.max() >= trace.n_ranks or rank.min() < 0:
        return np.full((trace.n_ranks, 0), math.nan)
    arrival = np.full((trace.n_ranks, int(seq.max()) + 1), math.nan)
    arrival[rank, seq] = t - t.min()
    return arrival


def _median(values: np.ndarray) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def _metrics(trace: Trace) -> dict[str, dict[str, Any]]:
    return {name: _course(table) for name, table in trace.metrics().items() if len(table["step"])}


def _course(table: dict[str, np.ndarray]) -> dict[str, Any]:
    order, starts = tables.blocks(table["step"])
    counts = np.diff(np.append(starts, len(order)))
    values = np.add.reduceat(table["value"][order], starts) / counts
    finite = values[np.isfinite(values)]
    return {
        "count": len(table["value"]),
        "first": _number(values[0]),
        "last": _number(values[-1]),
        "min": _number(finite.min()) if len(finite) else None,
        "max": _number(finite.max()) if len(finite) else None,
        "steps": table["step"][order][starts].tolist(),
        "values": [_number(value) for value in values],
    }


def _number(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None
