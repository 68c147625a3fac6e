"""Basic analyses of a trace: each takes a path and returns plain dicts, lists and numbers (times in ns)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import schema, tables
from .analyses.arrivals import stragglers
from .analyses.frame import Frame, Given, mean_by_step, opened, quantities
from .analyses.over_steps import step_table
from .tables import Result, Table
from .totals import BYTES, Totals


def report(path: Given) -> Result:
    """All analyses of this module in one dict, as ``mpicomp trace report --json`` prints it."""
    with opened(path) as frame:
        duration = step_table(frame)["duration"]
        steps = {"first": int(duration[0]), **quantities(duration)} if len(duration) else {"count": 0}
        return {
            "run": info(frame),
            "phases": phases(frame),
            "steps": steps,
            "traffic": traffic(frame),
            "imbalance": imbalance(frame),
            "metrics": metrics(frame),
        }


def info(path: Given) -> Result:
    """The run card: metadata of the run, the amount recorded, and missing parts."""
    with opened(path) as frame:
        trace, begins, ends, n_backwards = frame.trace, [], [], 0
        for part in trace.parts():
            events = part.events("rank", "t_start", "t_end")
            if len(events["rank"]):
                begins.append(int(part.corrected(events["rank"], events["t_start"]).min()))
                ends.append(int(part.corrected(events["rank"], events["t_end"]).max()))
                n_backwards += int(np.sum(events["t_end"] < events["t_start"]))
        ranks = trace.table("ranks", ["n_events", "n_dropped"])
        return {
            **trace.attributes,
            "n_events": int(ranks["n_events"].sum()),
            "n_dropped": int(ranks["n_dropped"].sum()),
            "files": len(trace.files),
            "duration": max(ends, default=0) - min(begins, default=0),
            "hosts": list(dict.fromkeys(filter(None, trace.hostnames()))),
            "clock_uncertainty": trace.clock_uncertainty(),
            "n_backwards": n_backwards,
            "ranks_not_closed": {rank: state for rank, state in enumerate(trace.status()) if state != "closed"},
            "missing_parts": trace.missing_parts,
        }


def summary(path: Given, by: Sequence[str] = ("kind", "algo", "scheme", "size_bin")) -> list[Result]:
    """Time and bytes for each combination of the columns in ``by``, longest total first."""
    wanted, totals = {"t_start", "t_end", *BYTES, *by} - {"size_bin"}, Totals()
    with opened(path) as frame:
        for part in frame.trace.parts():
            totals.add(tuple(by), part.events(*sorted(wanted)))
        names = {field: frame.trace.vocabulary(field) for field in by if field in schema.LABEL_FIELDS}
    rows: list[Result] = []
    for values, durations, nbytes in totals.rows():
        key = {name: names[name][value] if name in names else value for name, value in zip(by, values, strict=True)}
        rows.append({**key, **quantities(durations), **nbytes})
    return sorted(rows, key=lambda row: -row["total"])


def phases(path: Given) -> list[Result]:
    """Time of each kind of event and its share of the time that the ranks recorded.

    A phase inside another (an all-reduce inside an exchange) counts in both: shares need not add up to 1.
    """
    with opened(path) as frame:
        rows, whole = summary(frame, ("kind",)), 0
        outermost = frame.trace.table("steps")  # an app and its reducer may both mark a step, which counts once
        for part in frame.trace.parts():
            events = part.events("rank", "t_start", "t_end")
            for _, own in tables.groups(events["rank"]):
                whole += int(events["t_end"][own].max()) - int(events["t_start"][own].min())
    for row in rows:
        if row["kind"] == "step" and len(outermost["step"]):
            row |= quantities(outermost["t_end"] - outermost["t_start"])
        row["share"] = row["total"] / whole if whole else 0.0
    return sorted(rows, key=lambda row: -row["total"])


def traffic(path: Given) -> Result:
    """Bytes that a rank sends in a step (the mean; None without steps), and the ratio to those of a dense all-reduce.

    Bytes of steps and collectives count, without those inside another one that counts their bytes; ``kind`` is the
    first kind of them that sends any. The mean is over all steps, also those that send nothing.
    """
    dense, whole, in_steps, n_steps, carrying = 0, 0, 0, 0, set[int]()
    with opened(path) as frame:
        kinds = [kind for kind in ("step", *schema.COLLECTIVE_KINDS) if kind in frame.kinds]
        for part in map(Frame, frame.trace.parts()):  # the events of a rank are all in one
            counted = np.any([part.column(name) > 0 for name in BYTES], axis=0)
            counted &= np.isin(part.kind, [frame.code(kind) for kind in kinds])
            rows = np.flatnonzero(part.not_enclosed(counted))
            sent, inside = part.column("nbytes_sent")[rows].astype(np.int64), part.step[rows] >= 0
            whole, in_steps = whole + int(sent.sum()), in_steps + int(sent[inside].sum())
            every = (np.concatenate([part.steps[name], part.column(name)[rows[inside]]]) for name in ("rank", "step"))
            n_steps += len(tables.blocks(*every)[1])
            dense += int(part.column("nbytes_dense")[rows].sum())
            carrying |= {*part.kind[rows[sent > 0]].tolist()}
        first = next((kind for kind in kinds if frame.code(kind) in carrying), None)
    if first is None:
        return {"kind": None}
    share = 2 * (frame.n_ranks - 1) / frame.n_ranks * dense  # what a bandwidth-optimal all-reduce sends
    return {
        "kind": first,
        "nbytes_sent": whole,
        "nbytes_sent_per_rank_and_step": in_steps / n_steps if n_steps else None,
        "nbytes_dense": dense,
        "compression_rate": share / whole if share else None,
    }


def imbalance(path: Given) -> Result:
    """Lateness of each rank at the kind of communication with the longest waits, as `stragglers` chooses it.

    Behind that one, which waits for the late rank, all come together.
    """
    with opened(path) as frame:
        found = stragglers(frame)
        if found["kind"] is None:
            return {"kind": None}
        kinds, ranks, uncertainty = found["kinds"], found["ranks"], frame.trace.clock_uncertainty()
        lateness = dict(zip(ranks["rank"].tolist(), ranks["lateness"].tolist(), strict=True))
        return {
            "kind": found["kind"],
            "collectives": found["calls"],
            "lateness": [lateness.get(rank) for rank in range(frame.n_ranks)],
            "spread": found["spread"],
            "median_wait": float(kinds["wait"][kinds["kind"] == found["kind"]][0]),
            "slowest_rank": max(lateness, key=lateness.__getitem__),
            "clock_uncertainty": uncertainty,
            "significant": found["spread"] > 2 * uncertainty,
        }


def metrics(path: Given) -> dict[str, Result]:
    """Each metric's least and greatest value, and its mean over ranks at each step, with the first and the last."""
    with opened(path) as frame:
        return {name: _course(table) for name, table in frame.trace.metrics().items() if len(table["step"])}


def _course(table: Table) -> Result:
    steps, values = mean_by_step(table)
    finite = table["value"][np.isfinite(table["value"])]
    return {
        "count": len(table["value"]),
        "first": _number(values[0]),
        "last": _number(values[-1]),
        "min": _number(finite.min()) if len(finite) else None,
        "max": _number(finite.max()) if len(finite) else None,
        "steps": steps.tolist(),
        "values": [_number(value) for value in values],
    }


def _number(value: float) -> float | None:
    """A value that JSON can hold: neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None
