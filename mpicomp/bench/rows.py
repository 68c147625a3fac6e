"""Rows of a report: one flat row per implementation and size, from the samples of its rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from .._util.plurals import count
from ..allreduce.native import least_bytes
from .confidence import median_interval
from .plan import Plan, bounded_name, show_size
from .schema import Row, full
from .timing import Facts, Implementation, Sample

# The columns in which an implementation and its baseline agree.
_ALIKE = itemgetter("collective", "dtype", "n_ranks", "device", "nbytes", "cycle")
# Columns that a row's name leaves out: they precede the name if they differ among the rows of a table.
TELLING = ("collective", "n_ranks", "device", "dtype", "op", "cycle")


def make_row(plan: Plan, implementation: Implementation, sample: Sample, n: int, size: int) -> Row:
    """The figures of one implementation on vectors (or blocks) of ``n`` elements over ``size`` ranks."""
    nbytes = n * plan.itemsize * (size if plan.what.blocks else 1)
    facts = implementation.facts(len(sample.seconds))
    median = float(np.median(sample.seconds))
    algbw = nbytes / median / 1e9
    dense = facts.scheme is None
    wire = round(sample.wire_bytes)
    return full({
        "collective": plan.collective, **facts._asdict(),
        "dtype": plan.dtype, "op": (plan.op if plan.what.reduces else None) if dense else "mean",
        "root": plan.root if plan.what.rooted else -1, "device": plan.device,
        "nbytes": nbytes, "count": n, "n_ranks": size,
        **times(sample.seconds), "t_avg_us": 1e6 * sample.mean_seconds,
        "algbw_gbs": algbw,
        "busbw_gbs": algbw * plan.what.bus_factor(size) if dense and facts.bound is None and size > 1 else None,
        "wire_bytes": wire,
        "wire_modelled": sample.modelled_bytes > 0,
        "ratio": None if facts.bound is None else ratio(nbytes, wire, size),
        **({} if dense else compression(facts, nbytes, wire, size, 1e6 * median)),
    })  # fmt: skip


def ratio(nbytes: int, wire: int, size: int) -> float | None:
    """Bytes of a bandwidth-optimal dense all-reduce over bytes sent; None if nothing is sent."""
    return least_bytes(nbytes, size) / wire if wire else None


def times(seconds: np.ndarray) -> dict[str, float | None]:
    """Statistics over rounds, in microseconds; the spread is the middle half of the rounds over their median."""
    low, median, high, p90, p99 = np.percentile(seconds, [25, 50, 75, 90, 99]) * 1e6
    mean = float(seconds.mean())
    ci_low, ci_high = (1e6 * end if math.isfinite(end) else None for end in median_interval(seconds))
    return {
        "t_med_us": float(median), "ci_low_us": ci_low, "ci_high_us": ci_high,
        "t_min_us": float(seconds.min() * 1e6), "t_mean_us": mean * 1e6,
        "t_p90_us": float(p90), "t_p99_us": float(p99), "t_max_us": float(seconds.max() * 1e6),
        "spread_pct": float(100 * (high - low) / median), "cv_pct": 100 * float(seconds.std()) / mean,
        "iters": len(seconds),
    }  # fmt: skip


def compression(facts: Facts, nbytes: int, wire: int, size: int, t_us: float) -> dict[str, float | None]:
    """Costs and savings of a scheme's step.

    Compressing is selecting and encoding, without the wait for indices that another rank selects. A rank computes that
    and the update of its memory in a step over all ranks; alone it computes the whole step. A link of B bytes/s
    carries a dense all-reduce of D bytes in D/B and the scheme's W in W/B: the scheme wins if the saved (D - W)/B is
    longer than its computing time. If nothing was sent, no link carried it: the ranks share memory, or there is one.
    """
    phases, dense_wire = facts.t_phase_us or {}, least_bytes(nbytes, size)
    compress = phases.get("select", 0.0) + max(0.0, phases.get("compress", 0.0) - phases.get("broadcast", 0.0))
    alone = facts.part == "local"
    local = t_us if alone else compress + phases.get("update", 0.0)
    saved = dense_wire - wire
    return {
        "ratio": None if alone else ratio(nbytes, wire, size),
        "t_local_us": local,
        "t_compress_us": compress,
        "t_decompress_us": max(0.0, t_us - compress - phases.get("agree", 0.0)) if alone else None,
        "break_even_gbs": max(0, saved) / local / 1e3 if wire and not alone else None,
    }


def share_local(rows: Sequence[Row]) -> None:
    """Replace the computing time of a step by that of the same scheme alone, which includes decompression."""
    alone = {row["scheme"]: row["t_local_us"] for row in rows if row["part"] == "local"}
    for row in rows:
        local, own = alone.get(row["scheme"]), row["t_local_us"]
        if row["part"] == "step" and local is not None and own is not None:
            if row["break_even_gbs"] is not None:
                row["break_even_gbs"] *= own / local
            row["t_local_us"] = local


def with_baselines(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Each step's row with its baseline: the first row of the same size and place; of any place for a scheme."""
    first: dict[object, Row] = {}
    for row in rows:
        own = first.setdefault((_ALIKE(row), row["op"], row["place"]), row)
        base = first.setdefault(_ALIKE(row), row)
        if row["part"] != "local":
            yield row, base if row["place"] is None else own


def compare_with_first(rows: Iterable[Row]) -> None:
    """Set ``vs`` of every step."""
    for row, base in with_baselines(rows):
        row["vs"] = base["t_med_us"] / row["t_med_us"]


def label(row: Row, differ: Sequence[str] = (), place: bool = True) -> str:
    """The name of a row's implementation, after the values of the fields that ``differ`` in its table."""
    name = row["algorithm"] or row["scheme"] or ""
    name = name if row["bound"] is None else bounded_name(name, row["bound"], bool(row["relative"]))
    name = f"{name} (local)" if row["part"] == "local" else name
    name = f"{name} (in place)" if place and row["place"] == "in" else name
    values: dict[str, object] = {**row}
    before = [_WORDS.get(field, str)(values[field]) for field in differ if values[field] is not None]
    return " ".join([*before, name])


_WORDS: dict[str, Callable[[Any], str]] = {"n_ranks": lambda n: count(n, "rank"), "cycle": "cycle {}".format}


def differing(rows: Sequence[Row]) -> tuple[str, ...]:
    """The fields in which rows of one implementation and size differ, so that their names must include them."""
    dense = [row for row in rows if row["scheme"] is None] or rows  # a scheme's op is always the mean
    return tuple(name for name in TELLING
                 if len({itemgetter(name)(row) for row in (dense if name == "op" else rows)}) > 1)


def in_short(rows: Sequence[Row]) -> list[str]:
    """A line per dense implementation of several sizes: time at the smallest size, and best bandwidth."""
    differ, dense = differing(rows), [(row, row["busbw_gbs"]) for row in rows if row["busbw_gbs"] is not None]
    lines = []
    for name in dict.fromkeys(label(row, differ) for row, _ in dense):
        own = [(row, busbw) for row, busbw in dense if label(row, differ) == name]
        (least, _), (best, rate) = min(own, key=lambda one: one[0]["nbytes"]), max(own, key=itemgetter(1))
        if len(own) > 1:
            lines.append(f"{name}: {micros(least['t_med_us'])} us at {show_size(least['nbytes'])}, busbw up to "
                         f"{figures(rate)} GB/s, at {show_size(best['nbytes'])}")
    return lines


def closing(rows: Sequence[Row]) -> list[str]:
    """A sentence per implementation that compares it with the baseline over all sizes, the fastest first.

    The geometric mean of the ratios of medians, with the half-width of its 95 % confidence interval (or the spread of
    the launches) if every row has one.
    """
    differ = differing(rows)
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row, base in with_baselines(rows):
        if row is not base:
            error = math.hypot(uncertainty(row), uncertainty(base))
            names = label(row, differ), label(base, differ)
            ratios.setdefault(names, []).append((math.log(base["t_med_us"] / row["t_med_us"]), error))
    means = {names: sum(log for log, _ in logs) / len(logs) for names, logs in ratios.items()}
    lines = []
    for (name, base_name), mean in sorted(means.items(), key=lambda item: -item[1]):
        logs = ratios[name, base_name]
        ratio = math.exp(abs(mean))
        spread = ratio * math.hypot(*(error for _, error in logs)) / len(logs)
        figure = f"{ratio:.2f}x" + f" +- {spread:.2f}" * math.isfinite(spread)
        sizes = f"geometric mean over {count(len(logs), 'size')}"
        lines.append(f"{name} {figure} {'faster' if mean >= 0 else 'slower'} than {base_name} ({sizes})")
    return lines


def ranks_of(rows: Iterable[Row]) -> str:
    """The numbers of ranks of ``rows``, such as "2 4 ranks"."""
    numbers = list(dict.fromkeys(row["n_ranks"] for row in rows))
    return f"{' '.join(map(str, numbers))} rank{'s' * (numbers != [1])}"


def uncertainty(row: Row) -> float:
    """Relative half-width of the interval of a row's median; infinite if it has none."""
    low, high = interval(row)
    return (high - low) / 2 / row["t_med_us"] if low is not None and high is not None else math.inf


def interval(row: Row) -> tuple[float | None, float | None]:
    """The fastest and slowest launch, or else the 95 % confidence interval of the median."""
    if row["t_low_us"] is not None:
        return row["t_low_us"], row["t_high_us"]
    return row["ci_low_us"], row["ci_high_us"]


def micros(value: float) -> str:
    """Microseconds with three digits or more, never as a power of ten.

    >>> micros(2.5), micros(81.24), micros(63880.3)
    ('2.50', '81.2', '63880')
    """
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def figures(value: float | None) -> str:
    """GB/s with three digits; "-" for None."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def wrong_results(rows: Sequence[Row]) -> list[str]:
    """One line per row with wrong elements."""
    return [
        f"{label(row, differing(rows))} at {row['nbytes']} bytes: {row['n_wrong']} of {row['count']} elements are wrong"
        for row in rows if row["ok"] is False
    ]  # fmt: skip
