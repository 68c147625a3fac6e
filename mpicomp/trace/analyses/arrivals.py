"""Late arrivals at communications: ranks, amount and frequency, within the uncertainty of the clocks."""

from __future__ import annotations

import math

import numpy as np

from .. import schema, tables
from ..tables import Result, Table
from .frame import Frame, Given, choose, collective_kinds, compact, grouped, median_of, opened, quantiles, spread_of

_ODD = schema.WARMUP | schema.ERROR | schema.TRUNCATED  # events that say little about the rest


def calls(frame: Frame, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a kind, and the number (from 0) of the call of all ranks that each belongs to.

    Calls are matched by step and place in the step (outside of steps: in the run), so that a rank that left out a
    call is matched again from the next step on.
    """
    rows = frame.rows_of(kind)
    step = frame.step[rows]
    # The rows of a rank are in order of time, and a stable sort keeps it: the place in a block is the ordinal.
    order, starts = tables.blocks(frame.rank[rows], step)
    ordinal = np.empty(len(rows), np.int64)
    ordinal[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    number, _ = compact(step, ordinal)
    return rows, number


def lateness_of(frame: Frame, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of calls that at least two ranks came to, their calls, arrivals (ns) and lateness (ns).

    Arrivals are on the reference rank's clock; lateness is against the median arrival of the call. Calls marked as
    warm-up, failed or cut short are left out.
    """
    rows, call = calls(frame, kind)
    good = (frame.column("flags")[rows] & _ODD) == 0
    good &= np.bincount(call, minlength=1)[call] > 1
    rows, call = rows[good], call[good]
    arrival = frame.corrected(rows, "t_start")
    numbers, middle = median_of(call, arrival - arrival.min(initial=0))
    late = arrival - arrival.min(initial=0) - middle[np.searchsorted(numbers, call)]
    return rows, call, arrival, late


def lateness_of_all(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all communications, ascending, and their lateness."""
    parts = [lateness_of(frame, kind) for kind in collective_kinds(frame)]
    rows = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
    late = np.concatenate([part[3] for part in parts] or [np.empty(0)])
    order = np.argsort(rows)
    return rows[order], late[order]


def stragglers(path: Given, kind: str | None = None) -> Result:
    """Ranks that come late to a communication: how late, how often, and the cost for the others.

    The measure is a rank's median lateness against the median arrival of each call, which finds one late rank of
    thousands. Of several kinds in a step, only the first after the delay shows it, so the kind with the longest waits
    is taken. A rank is called late if its lateness exceeds the uncertainty of its clock and of the median rank's, and
    the noise: so many standard errors that among all ranks none would pass by chance.

    Parameters
    ----------
    kind : str, optional
        Measure on this kind of event.

    Returns
    -------
    dict
        ``kind calls spread`` (ns between the latest and the earliest rank), ``late_ranks``; table ``kinds``: ``kind
        calls wait total_wait`` (last minus median arrival, median and sum); table ``ranks``: ``rank node calls
        lateness p90 late last caused uncertainty noise significant``: ``late`` and ``last`` are the shares of calls
        it was late to or last at, ``caused`` the ns by which it delayed the last arrival; table
        ``nodes``; ``absent`` ranks; ``clock_uncertainty`` of the worst pair, ns. If no communication of several ranks
        was recorded, ``kind`` is None and the tables are empty.
    """
    with opened(path) as frame:
        nothing: Result = {"kind": None, "calls": 0, "spread": 0.0, "late_ranks": [], "absent": [], "kinds": {},
                           "ranks": {}, "nodes": {}, "clock_uncertainty": worst_pair(frame)}  # fmt: skip
        kinds = collective_kinds(frame)
        if frame.n_ranks < 2 or not kinds:
            return nothing
        found = {name: lateness_of(frame, name) for name in ([choose("kind", kind, kinds)] if kind else kinds)}
        waits = {name: waits_of(part[1], part[3]) for name, part in found.items()}
        chosen = max(found, key=lambda name: waits[name].sum())
        rows, call, arrival, late = found[chosen]
        if not len(rows):
            return nothing
        ranks = _ranks(frame, rows, call, arrival, late)
        came = np.bincount(frame.rank[rows], minlength=frame.n_ranks) > 0
        names = list(found)
        return {
            "kind": chosen,
            "calls": len(waits[chosen]),
            "spread": float(np.ptp(ranks["lateness"])),
            "late_ranks": ranks["rank"][ranks["significant"]].tolist(),
            "absent": np.flatnonzero(~came).tolist(),
            "kinds": {
                "kind": np.array(names),
                "calls": np.array([len(waits[name]) for name in names]),
                "wait": np.array([np.median(waits[name]) if len(waits[name]) else np.nan for name in names]),
                "total_wait": np.array([waits[name].sum() for name in names]),
            },
            "ranks": ranks,
            "nodes": _nodes(ranks),
            "clock_uncertainty": worst_pair(frame),
        }


def worst_pair(frame: Frame) -> int:
    """Largest error (ns) of the difference between two ranks' corrected times."""
    worst = np.sort(frame.uncertainty)[-2:]
    return int(worst.sum())


def waits_of(call: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Time (ns) from the median to the last arrival of each call."""
    _, starts, (ordered,) = grouped(call, late)
    return ordered[np.append(starts[1:], len(ordered)) - 1] if len(starts) else np.empty(0)


def _ranks(frame: Frame, rows: np.ndarray, call: np.ndarray, arrival: np.ndarray, late: np.ndarray) -> Result:
    rank = frame.rank[rows]
    present, (middle, p90) = quantiles(rank, late, 0.5, 0.9)
    place = np.searchsorted(present, rank)
    counts = np.bincount(place)
    _, own_spread = median_of(rank, np.abs(late - middle[place]))
    # The noise of a rank with few calls is badly known: take the greater of its own and that of all.
    sigma = np.maximum(1.4826 * own_spread, spread_of(late - middle[place]))
    noise = (3 + math.sqrt(2 * math.log(len(present)))) * 1.2533 * sigma / np.sqrt(counts)
    uncertainty = frame.uncertainty[present] + int(np.median(frame.uncertainty[present]))
    _, starts, (ordered, whose) = grouped(call, arrival, rank)
    ends = np.append(starts[1:], len(ordered)) - 1
    last = np.searchsorted(present, whose[ends])
    return {
        "rank": present,
        "node": frame.trace.table("ranks", ["node"])["node"][present],
        "calls": counts,
        "lateness": middle,
        "p90": p90,
        "late": np.bincount(place, late > np.maximum(uncertainty, spread_of(late))[place]) / counts,
        "last": np.bincount(last, minlength=len(present)) / counts,
        "caused": np.bincount(last, ordered[ends] - ordered[ends - 1], len(present)),
        "uncertainty": uncertainty,
        "noise": noise,
        "significant": (middle > uncertainty) & (middle > noise) & (middle > 0),
    }


def _nodes(ranks: Result) -> Table:
    """Median lateness over each node's ranks, and the number of late ones."""
    node, middle = median_of(ranks["node"], ranks["lateness"])
    place = np.searchsorted(node, ranks["node"])
    return {"node": node, "ranks": np.bincount(place), "lateness": middle,
            "late_ranks": np.bincount(place, ranks["significant"]).astype(np.int64)}  # fmt: skip
