"""From samples to the flat rows of a report: one row for each implementation and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..allreduce.cost import least_bytes
from .confidence import median_interval
from .plan import Plan, show_size
from .timing import Implementation, Sample


class Field(NamedTuple):
    """One column of a report."""

    kind: type
    units: str = "1"
    meaning: str = ""


# Every column there is, in the order files have them.
FIELDS = {
    "collective": Field(str, meaning="what was measured"),
    "algorithm": Field(str, meaning="dense algorithm; none for a scheme"),
    "scheme": Field(str, meaning="compression scheme; none for a dense algorithm"),
    "part": Field(str, meaning="step: over all ranks; local: on every rank alone"),
    "dtype": Field(str), "op": Field(str), "root": Field(int, meaning="-1 where there is none"),
    "place": Field(str, meaning="out or in; none for a scheme"), "device": Field(str),
    "nbytes": Field(int, "byte", "dense bytes, which bandwidths count"),
    "count": Field(int, meaning="elements of a vector, or of one rank's block"),
    "n_ranks": Field(int), "cycle": Field(int, meaning="of several, from 1"),
    "t_med_us": Field(float, "us", "median over rounds of the maximum over ranks"),
    "ci_low_us": Field(float, "us", "lower end of the median's 95 % confidence interval"),
    "ci_high_us": Field(float, "us", "upper end of it"),
    "t_min_us": Field(float, "us"), "t_mean_us": Field(float, "us"),
    "t_avg_us": Field(float, "us", "mean over rounds and ranks"),
    "t_p90_us": Field(float, "us"), "t_p99_us": Field(float, "us"), "t_max_us": Field(float, "us"),
    "spread_pct": Field(float, "percent", "middle half of the rounds over their median"),
    "cv_pct": Field(float, "percent", "standard deviation over mean"),
    "iters": Field(int), "warmup": Field(int),
    "algbw_gbs": Field(float, "1e9 byte/s"), "busbw_gbs": Field(float, "1e9 byte/s"),
    "wire_bytes": Field(int, "byte", "sent in a step by the rank that sends most"),
    "wire_modelled": Field(bool, meaning="some of them by formula: inside a call of MPI's own"),
    "ratio": Field(float, meaning="bytes of a bandwidth-optimal dense all-reduce over bytes sent"),
    "density": Field(float, meaning="elements a rank sends over elements"),
    "t_local_us": Field(float, "us", "what a rank computes in a step"),
    "t_compress_us": Field(float, "us"), "t_decompress_us": Field(float, "us"),
    "break_even_gbs": Field(float, "1e9 byte/s", "the scheme saves time on links slower than this"),
    "t_phase_us": Field(dict, "us", "median of every phase"),
    "vs": Field(float, meaning="times as fast as the first implementation"),
    "n_wrong": Field(int, meaning="-1 where results were not checked"), "ok": Field(bool),
    "launches": Field(int, meaning="launches this row is the median of"),
    "t_low_us": Field(float, "us", "fastest launch's median"),
    "t_high_us": Field(float, "us", "slowest launch's median"),
    "baseline_us": Field(float, "us"), "change_pct": Field(float, "percent", "against the baseline"),
    "regressed": Field(bool),
}  # fmt: skip
# What makes two rows the same measurement.
KEY = ("collective", "algorithm", "scheme", "part", "dtype", "op", "root", "place", "device", "nbytes", "n_ranks",
       "cycle")  # fmt: skip
# Those of them that a row's name leaves out: it gets them in front where they differ among the rows of a table.
TELLING = ("collective", "n_ranks", "device", "dtype", "op", "cycle")


def row(
    plan: Plan, implementation: Implementation, sample: Sample, n: int, size: int, baseline: Sample
) -> dict[str, Any]:
    """The figures of one implementation on vectors (or blocks) of ``n`` elements over ``size`` ranks."""
    nbytes = n * plan.itemsize * (size if plan.what.blocks else 1)
    facts = implementation.facts(len(sample.seconds))
    median = float(np.median(sample.seconds))
    algbw = nbytes / median / 1e9
    dense = facts["scheme"] is None
    wire = round(sample.wire_bytes)
    return {
        "collective": plan.collective, "density": None, "t_phase_us": None, **facts,
        "dtype": plan.dtype, "op": (plan.op if plan.what.reduces else None) if dense else "mean",
        "root": plan.root if plan.what.rooted else -1, "device": plan.device,
        "nbytes": nbytes, "count": n, "n_ranks": size,
        **times(sample.seconds), "t_avg_us": 1e6 * sample.mean_seconds,
        "algbw_gbs": algbw,
        "busbw_gbs": algbw * plan.what.bus_factor(size) if dense and size > 1 else None,
        "wire_bytes": wire,
        "wire_modelled": sample.modelled_bytes > 0,
        **({} if dense else compression(facts, nbytes, wire, size, 1e6 * median)),
        "vs": None if facts["part"] == "local" else float(np.median(baseline.seconds)) / median,
    }  # fmt: skip


def times(seconds: np.ndarray) -> dict[str, Any]:
    """Statistics over rounds, in microseconds; the spread is the middle half of the rounds over their median."""
    low, median, high, p90, p99 = np.percentile(seconds, [25, 50, 75, 90, 99]) * 1e6
    mean = float(seconds.mean())
    ends = (1e6 * end if math.isfinite(end) else None for end in median_interval(seconds))
    return {
        "t_med_us": float(median), **dict(zip(("ci_low_us", "ci_high_us"), ends, strict=True)),
        "t_min_us": float(seconds.min() * 1e6), "t_mean_us": mean * 1e6,
        "t_p90_us": float(p90), "t_p99_us": float(p99), "t_max_us": float(seconds.max() * 1e6),
        "spread_pct": float(100 * (high - low) / median), "cv_pct": 100 * float(seconds.std()) / mean,
        "iters": len(seconds),
    }  # fmt: skip


def compression(facts: dict[str, Any], nbytes: int, wire: int, size: int, t_us: float) -> dict[str, Any]:
    """What a scheme's step costs and saves.

    Compressing is selecting and writing down, without the wait for indices that another rank chooses. What a rank
    computes is that and the update of its memory in a step over all ranks; alone it is the whole step. A link of B
    bytes/s carries a dense all-reduce of D bytes in D/B and the scheme's W in W/B: the scheme wins where the saved
    (D - W)/B is longer than what it computes.
    """
    phases, dense_wire = facts["t_phase_us"], least_bytes(nbytes, size)
    compress = phases.get("select", 0.0) + max(0.0, phases.get("compress", 0.0) - phases.get("broadcast", 0.0))
    alone = facts["part"] == "local"
    local = t_us if alone else compress + phases.get("update", 0.0)
    saved = dense_wire - wire
    return {
        "ratio": dense_wire / wire if wire and not alone else None,
        "t_local_us": local,
        "t_compress_us": compress,
        "t_decompress_us": max(0.0, t_us - compress - phases.get("agree", 0.0)) if alone else None,
        "break_even_gbs": max(0, saved) / local / 1e3 if size > 1 and not alone else None,
    }


def share_local(rows: Sequence[dict[str, Any]]) -> None:
    """Where a scheme was timed alone, too, that time is what it computes: it has decompression in it."""
    alone = {row["scheme"]: row for row in rows if row["part"] == "local"}
    for row in rows:
        if row["part"] == "step" and row["scheme"] in alone:
            local = alone[row["scheme"]]["t_local_us"]
            if row["break_even_gbs"] is not None:
                row["break_even_gbs"] *= row["t_local_us"] / local
            row["t_local_us"] = local


def full(row: dict[str, Any]) -> dict[str, Any]:
    """The row with every column, in order."""
    return {name: row.get(name) for name in FIELDS}


def label(row: dict[str, Any], differ: Sequence[str] = ()) -> str:
    """What a row is about, in one word; before it the fields that ``differ`` among the rows of its table."""
    name = row["algorithm"] or row["scheme"]
    name = f"{name} (local)" if row["part"] == "local" else f"{name} (in place)" if row["place"] == "in" else name
    told = [_WORDS.get(field, "{}").format(row[field]) for field in differ if row[field] is not None]
    return " ".join([*told, name])


_WORDS = {"n_ranks": "{} ranks", "cycle": "cycle {}"}


def differing(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What rows of one implementation and size differ in, so that their names must tell."""
    dense = [row for row in rows if row["scheme"] is None] or rows  # a scheme's op is always the mean
    return tuple(name for name in TELLING if len({row[name] for row in (dense if name == "op" else rows)}) > 1)


def in_short(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each dense implementation of several sizes: its time at the smallest, and its best bandwidth."""
    differ, dense = differing(rows), [row for row in rows if row["busbw_gbs"] is not None]
    lines = []
    for name in dict.fromkeys(label(row, differ) for row in dense):
        own = [row for row in dense if label(row, differ) == name]
        least, best = min(own, key=lambda row: row["nbytes"]), max(own, key=lambda row: row["busbw_gbs"])
        if len(own) > 1:
            lines.append(f"{name}: {micros(least['t_med_us'])} us at {show_size(least['nbytes'])}, busbw up to "
                         f"{figures(best['busbw_gbs'])} GB/s, at {show_size(best['nbytes'])}")
    return lines


def micros(value: float) -> str:
    """Microseconds with three digits or more, never as a power of ten.

    >>> micros(2.5), micros(81.24), micros(63880.3)
    ('2.50', '81.2', '63880')
    """
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def figures(value: float | None) -> str:
    """GB/s with three digits; "-" where it means nothing."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def wrong_results(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each row with wrong elements."""
    return [
        f"{label(row, differing(rows))} at {row['nbytes']} bytes: {row['n_wrong']} of {row['count']} elements are wrong"
        for row in rows if row["ok"] is False
    ]  # fmt: skip
