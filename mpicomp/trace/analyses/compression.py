"""Benefit of compression: time saved and spent, and the measures of its effect on the training."""

from __future__ import annotations

import numpy as np

from ..._util.plurals import count
from ...errors import InvalidArgument
from .. import tables
from ..tables import Result, Table
from .frame import COMPRESSION, Frame, Given, compact, mean_by_step, opened, quantiles
from .traffic import bandwidth as bandwidth_of

_DENSE = (0.9, 1.2)  # ratios at which a scheme sends as much as a dense all-reduce: the reference for the others
_EVEN = 0.05  # smaller gains are called even
_ALONE = "one rank alone sends nothing, so compression saves nothing: record a run of several ranks"
_CANNOT = "no dense all-reduce of such a size in this trace: give the network's busbw, as `mpicomp bench` measures it"


def codec(path: Given, busbw: float | None = None) -> Result:
    """Savings and cost of each scheme, and the networks on which it pays.

    Compression of a step costs the time of the slowest rank outside of communication; work done while values travel
    is free. It pays if sending the saved bytes takes longer, so below the break-even bandwidth
    ``(2 (p-1)/p dense bytes - sent bytes) / compression time``. Latency is left out.

    The verdict compares compression and communication of a step, without waits for late ranks, to the time of a
    dense all-reduce: by ``busbw``, else a dense scheme in the trace, else the trace's own all-reduces of the nearest
    size, from half of it on.

    Parameters
    ----------
    busbw : float, optional
        Bus bandwidth of dense all-reduces on this network, GB/s; takes precedence over the trace.

    Returns
    -------
    dict
        Table ``schemes``: ``scheme steps n_ranks dense sent ratio density time compression hidden communication cost
        break_even dense_time speedup worth basis``. Medians over steps (of a scheme that exchanges in some steps only,
        the mean of both kinds' medians): bytes of a vector; bytes sent by the rank that sends most; ns of the step
        (slowest rank), of compression outside of and inside communication (slowest rank), of communication (in each
        phase the rank that waited least). ``density`` is NaN unless ``Reducer(measures=...)`` measured it; ``worth``
        is yes, no, even or unknown. ``break_even`` is 0 if no bytes are saved, and NaN if none were sent: by one rank
        alone, or in memory that ranks share. Needs no comparison of clocks.
    """
    if busbw is not None and not busbw > 0:
        raise InvalidArgument(f"busbw must be a bandwidth in GB/s above 0, got {busbw}")
    with opened(path) as frame:
        rows = np.flatnonzero((frame.kind == frame.code("step")) & (frame.column("nbytes_dense") > 0))
        if not len(rows):
            return {"schemes": {}, "reason": "no step of a Reducer was recorded", "clock_uncertainty": None}
        table = _schemes(frame, rows)
        dense_time, basis = _dense_times(frame, table, busbw)
        speedup = dense_time / np.maximum(table["cost"], 1)
        cases = [np.isnan(speedup), speedup > 1 + _EVEN, speedup < 1 - _EVEN]
        judged = np.select(cases, ["unknown", "yes", "no"], "even")
        verdict = {"dense_time": dense_time, "speedup": speedup, "worth": judged, "basis": basis}
        reason = _ALONE if (table["n_ranks"] == 1).all() else _CANNOT if "unknown" in judged else ""
        return {"schemes": table | verdict, "reason": reason, "clock_uncertainty": None}


def _schemes(frame: Frame, rows: np.ndarray) -> Table:
    steps = _step_costs(frame, rows)
    group, (scheme,) = compact(steps["scheme"])
    middle = {name: quantiles(group, steps[name], 0.5)[1][0] for name in ("dense", "ranks")}
    middle |= {name: _typical(group, steps["exchanges"], steps[name])
               for name in ("sent", "time", "compression", "hidden", "communication")}  # fmt: skip
    p = np.maximum(middle.pop("ranks"), 1)
    saved = 2 * (p - 1) / p * middle["dense"] - middle["sent"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "scheme": np.array(frame.trace.vocabulary("scheme"))[scheme],
            "steps": np.bincount(group),
            "n_ranks": p.astype(np.int64),
            **middle,
            "cost": middle["compression"] + middle["communication"],
            "ratio": np.where(middle["sent"] > 0, 2 * (p - 1) / p * middle["dense"] / middle["sent"], np.nan),
            "density": _density(frame, steps["step"], group, len(scheme)),
            "break_even": np.select([middle["sent"] == 0, saved > 0], [np.nan, saved / middle["compression"]], 0.0),
        }


def _typical(group: np.ndarray, exchanges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Medians of each group over its steps that exchange and those that do not, weighted by their numbers.

    A scheme that exchanges in one step of eight would have the bytes and the cost of the other seven.
    """
    part, (owner, _) = compact(group, exchanges)
    counts = np.bincount(part)
    medians = quantiles(part, values, 0.5)[1][0]
    found: np.ndarray = np.bincount(owner, medians * counts) / np.bincount(owner, counts)
    return found


def _step_costs(frame: Frame, rows: np.ndarray) -> Table:
    """Costs of each step of each scheme and size, over its ranks."""
    pieces = frame.pieces
    begin = frame.on_axis(frame.rank[rows], frame.column("t_start")[rows])
    own_rank = frame.rank[pieces.event]
    place = np.searchsorted(begin, frame.on_axis(own_rank, pieces.begin), side="right") - 1
    around = rows[np.maximum(place, 0)]
    inside = (place >= 0) & (frame.rank[around] == own_rank) & (pieces.end <= frame.column("t_end")[around])
    compressing = inside & (frame.classes[frame.kind[pieces.event]] == COMPRESSION)
    waits = inside & frame.open_communication & ~frame.hidden()
    part = {
        "compression": compressing & ~frame.open_communication,
        "hidden": compressing & frame.open_communication,
    }
    kind = frame.kind[pieces.event]
    phases = {code: waits & (kind == code) for code in np.unique(kind[waits])}
    own = {name: np.bincount(place[chosen], pieces.own[chosen], len(rows)) for name, chosen in (part | phases).items()}
    scheme, dense = frame.column("scheme")[rows], frame.column("nbytes_dense")[rows]
    call, _ = compact(frame.rank[rows], scheme, dense, frame.step[rows])  # a step may have several alike
    order, starts = tables.blocks(scheme, dense, frame.step[rows], tables.ordinal(call))
    first = order[starts]
    exchanging = inside & (kind == frame.code("exchange"))
    exchanges = (frame.column("nbytes_sent")[rows] > 0) | (np.bincount(place[exchanging], minlength=len(rows)) > 0)

    def most(values: np.ndarray) -> np.ndarray:
        return np.maximum.reduceat(values[order], starts)

    return {
        "scheme": scheme[first],
        "step": frame.step[rows][first],
        "ranks": np.diff(np.append(starts, len(order))),
        "exchanges": most(exchanges),
        "dense": dense[first].astype(np.float64),
        "sent": most(frame.column("nbytes_sent")[rows]).astype(np.float64),
        "time": most(frame.duration[rows]).astype(np.float64),
        "compression": most(own["compression"]),
        "hidden": most(own["hidden"]),
        "communication": sum(np.minimum.reduceat(own[code][order], starts) for code in phases) + np.zeros(len(starts)),
    }


def _density(frame: Frame, step: np.ndarray, group: np.ndarray, n_schemes: int) -> np.ndarray:
    """Mean of the measured densities of each scheme's steps."""
    result, table = np.full(n_schemes, np.nan), frame.trace.metrics().get("density")
    if table is None:
        return result
    for scheme in range(n_schemes):
        chosen = np.isin(table["step"], step[group == scheme])
        if chosen.any():
            result[scheme] = table["value"][chosen].mean()
    return result


def _dense_times(frame: Frame, table: Result, busbw: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Time (ns) of a dense all-reduce of each scheme's vector, NaN if unknown, and the source of that figure."""
    share = 2 * (table["n_ranks"] - 1) / table["n_ranks"]
    share[share == 0] = np.nan  # one rank alone: there is nothing to compare with
    if busbw is not None:
        return share * table["dense"] / busbw, np.full(len(share), f"busbw of {busbw:g} GB/s as given")
    result, basis = np.full(len(share), np.nan), np.full(len(share), "", dtype=object)
    measured = bandwidth_of(frame.trace)["bandwidth"]
    dense = (table["ratio"] >= _DENSE[0]) & (table["ratio"] <= _DENSE[1])
    dense |= (table["scheme"] == "dense") & (table["n_ranks"] > 1)  # in memory that ranks share nothing is sent
    for row, nbytes in enumerate(table["dense"]):
        same = np.flatnonzero(dense & (table["dense"] == nbytes) & (np.arange(len(share)) != row))
        large = np.flatnonzero(measured["nbytes"] >= nbytes / 2)
        if len(same) and not dense[row]:
            best = same[np.argmin(table["cost"][same])]
            result[row], basis[row] = table["cost"][best], f"steps of {table['scheme'][best]} in this trace"
        elif len(large) and not dense[row]:
            distance = np.abs(np.log(measured["nbytes"][large] / nbytes))
            best = large[np.lexsort((-measured["median"][large], distance))[0]]  # nearest, then fastest
            result[row] = share[row] * nbytes / measured["median"][best]
            basis[row] = f"all-reduces by {measured['algo'][best]} in this trace, {measured['median'][best]:.3g} GB/s"
        elif dense[row]:
            result[row], basis[row] = table["cost"][row], "itself dense"
    return result, basis.astype(str)


def measures(path: Given) -> Result:
    """Values measured at each step, side by side: those of ``Reducer(measures=N)`` and ``recorder.metric``.

    Returns
    -------
    dict
        Table ``steps``: ``step`` and a column per metric, the mean over ranks (NaN if not measured); table
        ``metrics``: ``metric steps first last least greatest change``, where ``change`` is the median of the last
        quarter over that of the first, minus 1; ``remarks``: texts on conspicuous courses. Needs no comparison of
        clocks.
    """
    with opened(path) as frame:
        found = {name: table for name, table in frame.trace.metrics().items() if len(table["step"])}
        if not found:
            remark = "nothing was measured: make the Reducer with measures=N, or call recorder.metric"
            return {"steps": {}, "metrics": {}, "remarks": [remark], "clock_uncertainty": None}
        numbers = np.unique(np.concatenate([table["step"] for table in found.values()]))
        columns = {name: np.full(len(numbers), np.nan) for name in found}
        for name, table in found.items():
            steps, values = mean_by_step(table)
            columns[name][np.searchsorted(numbers, steps)] = values
        rows = [{"metric": name, **_course(values)} for name, values in columns.items()]
        return {
            "steps": {"step": numbers, **columns},
            "metrics": tables.of_rows(rows),
            "remarks": [remark for name, values in columns.items() for remark in _remarks(name, values)],
            "clock_uncertainty": None,
        }


def _course(values: np.ndarray) -> Result:
    known = values[~np.isnan(values)]
    if not len(known):
        return {"steps": 0, **dict.fromkeys(("first", "last", "least", "greatest", "change"), np.nan)}
    quarter = max(1, len(known) // 4)
    with np.errstate(all="ignore"):  # metrics may be infinite, or near it
        early, late = np.median(known[:quarter]), np.median(known[-quarter:])
        change = late / early - 1 if early else np.nan
    return {"steps": len(known), "first": known[0], "last": known[-1], "least": known.min(), "greatest": known.max(),
            "change": change}  # fmt: skip


def _remarks(name: str, values: np.ndarray) -> list[str]:
    known = values[~np.isnan(values)]
    finite = known[np.isfinite(known)]
    remarks = []
    if len(finite) < len(known):
        remarks.append(f"{name} was infinite in {count(len(known) - len(finite), 'measured step')}")
    if len(finite) < 8:
        return remarks
    half = len(finite) // 2
    if name == "memory_norm" and np.median(finite[-half // 2 :]) > 1.2 * np.median(finite[half // 2 : half]):
        remarks.append("memory_norm still grows at the end: the error memory is not sent fast enough to settle")
    if name == "contraction" and np.median(finite) > 0.999:
        remarks.append("contraction is near 1: a step sends almost nothing of the gradient; try a greater density")
    if name == "memory_cosine" and np.median(finite[half:]) < 0.05:
        remarks.append("memories of workers have little in common (memory_cosine near 0): a leader's choice of "
                       "coordinates suits only itself")  # fmt: skip
    return remarks

