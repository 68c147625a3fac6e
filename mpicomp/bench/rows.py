"""From samples to the flat rows of a report: one row for each implementation and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .plan import Plan
from .timing import Implementation, Sample


def row(
    plan: Plan, implementation: Implementation, sample: Sample, n: int, size: int, baseline: Sample
) -> dict[str, Any]:
    """The figures of one implementation on vectors of ``n`` elements over ``size`` ranks."""
    nbytes = n * np.dtype(plan.dtype).itemsize
    facts = implementation.facts(len(sample.seconds))
    median = float(np.median(sample.seconds))
    dense = facts["scheme"] is None
    algbw = nbytes / median / 1e9
    wire = round(sample.wire_bytes)
    dense_wire = 2 * (size - 1) * nbytes // size
    return {
        "collective": plan.collective, "density": None, "t_phase_us": None, **facts,
        "dtype": plan.dtype, "op": "sum" if dense else "mean", "place": plan.place if dense else None,
        "device": "cpu", "nbytes": nbytes, "count": n, "n_ranks": size,
        **times(sample.seconds),
        "algbw_gbs": algbw,
        "busbw_gbs": algbw * 2 * (size - 1) / size if dense and size > 1 else None,
        "wire_bytes": wire,
        "wire_modelled": sample.modelled_bytes > 0,
        "ratio": dense_wire / wire if wire and not dense else None,
        "vs": float(np.median(baseline.seconds)) / median,
    }  # fmt: skip


def times(seconds: np.ndarray) -> dict[str, Any]:
    """Statistics over rounds, in microseconds; the spread is the middle half of the rounds over their median."""
    low, median, high, p90, p99 = np.percentile(seconds, [25, 50, 75, 90, 99]) * 1e6
    mean = float(seconds.mean())
    return {
        "t_med_us": float(median), "t_min_us": float(seconds.min() * 1e6), "t_mean_us": mean * 1e6,
        "t_p90_us": float(p90), "t_p99_us": float(p99), "t_max_us": float(seconds.max() * 1e6),
        "spread_pct": float(100 * (high - low) / median), "cv_pct": 100 * float(seconds.std()) / mean,
        "iters": len(seconds),
    }  # fmt: skip


def wrong_results(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each row with wrong elements."""
    return [
        f"{row['algorithm'] or row['scheme']} at {row['nbytes']} bytes: {row['n_wrong']} of {row['count']} "
        "elements are wrong"
        for row in rows if row["ok"] is False
    ]  # fmt: skip
