"""Several launches as one table: a single launch proves little, one in three may be bad throughout."""

from __future__ import annotations

import statistics
from datetime import datetime, timezone
from typing import Any

from ..errors import InvalidArgument
from .compare import key
from .documents import FORMAT, VERSION

SAME = ("mpi", "versions", "seed")  # what launches of one measurement have in common


def merge(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One document from those of several launches, by file name.

    A row's time is the median of the launches' medians; ``t_low_us`` and ``t_high_us`` are the fastest and the slowest
    launch's, ``spread_pct`` their distance in percent of the median. Bandwidths and ``vs`` follow from the median; the
    other figures are those of the launch that is the (lower) median one.
    """
    _check(documents)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for document in documents.values():
        for row in document["rows"]:
            groups.setdefault(key(row), []).append(row)
    rows = [_merged(rows) for rows in groups.values()]
    _compare(rows)
    first = next(iter(documents.values()))
    kept = {name: first[name] for name in (*SAME, "ranks", "environment") if name in first}
    return {
        "format": FORMAT, "version": VERSION, "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "definition": "t: median over launches of the launch's median; spread: slowest less fastest launch over it",
        **kept, "sources": list(documents), "differences": differences(documents),
        "noise": {name: document["noise"] for name, document in documents.items() if document.get("noise")},
        "rows": rows,
    }  # fmt: skip


def _check(documents: dict[str, dict[str, Any]]) -> None:
    if len(documents) < 2:
        raise InvalidArgument(f"merging takes the files of two launches or more, got {len(documents)}")
    seen: dict[Any, str] = {}
    for name, document in documents.items():
        if any((row["launches"] or 1) > 1 for row in document["rows"]):
            raise InvalidArgument(f"{name} is a merged file: merge the files of the launches themselves")
        content = repr(document["rows"])
        if content in seen:
            raise InvalidArgument(f"{name} and {seen[content]} hold the same launch: give each once")
        seen[content] = name


def differences(documents: dict[str, dict[str, Any]]) -> list[str]:
    """What the launches should have in common and have not."""
    found = []
    for name in SAME:
        values = {repr(document[name]) for document in documents.values() if name in document}
        if len(values) > 1:
            found.append(f"the launches differ in {name}: {'; '.join(sorted(values))}")
    hosts = {tuple(sorted({one["host"] for one in document["ranks"]})) for document in documents.values()
             if "ranks" in document}  # fmt: skip
    if len(hosts) > 1:
        found.append("the launches ran on different hosts")
    return found


def _merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(rows, key=lambda row: row["t_med_us"])
    middle, times = ordered[(len(rows) - 1) // 2], [row["t_med_us"] for row in ordered]
    median = statistics.median(times)
    faster = middle["t_med_us"] / median
    rates = {name: middle[name] and middle[name] * faster for name in ("algbw_gbs", "busbw_gbs")}
    checked = [row["ok"] for row in rows if row["ok"] is not None]
    wrong = [row["n_wrong"] for row in rows if row["n_wrong"] is not None]
    return {
        **middle, **rates, "t_med_us": median, "ci_low_us": None, "ci_high_us": None,
        "spread_pct": 100 * (times[-1] - times[0]) / median,
        "launches": len(rows), "t_low_us": times[0], "t_high_us": times[-1],
        "n_wrong": max(wrong, default=None), "ok": all(checked) if checked else None,
        "baseline_us": None, "change_pct": None, "regressed": None,
    }  # fmt: skip


def _compare(rows: list[dict[str, Any]]) -> None:
    """Set ``vs`` anew, against the first row of the same size (and place, where it has one)."""
    first: dict[Any, float] = {}
    for row in rows:
        mine = tuple(row[name] for name in ("collective", "dtype", "n_ranks", "device", "nbytes", "cycle"))
        own = first.setdefault((*mine, row["op"], row["place"]), row["t_med_us"])
        base = first.setdefault((*mine, "any"), row["t_med_us"])
        if row["part"] != "local":
            row["vs"] = (base if row["place"] is None else own) / row["t_med_us"]
