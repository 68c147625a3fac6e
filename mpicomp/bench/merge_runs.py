"""Merge of several launches into one table: one launch in three may be bad throughout."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import cast

from ..errors import InvalidArgument
from .documents import FORMAT, VERSION
from .rows import compare_with_first
from .schema import Document, Row, key

SAME = ("mpi", "versions", "seed")  # facts that launches of one measurement have in common


def merge(documents: Mapping[str, Document]) -> Document:
    """One document from those of several launches, by file name.

    A row's time is the median of the launches' medians; ``t_low_us`` and ``t_high_us`` are the fastest and the slowest
    launch's, ``spread_pct`` their distance in percent of the median. Bandwidths and ``vs`` follow from the median; the
    other figures are those of the (lower) median launch.
    """
    _check(documents)
    groups: dict[object, list[Row]] = {}
    for document in documents.values():
        for row in document["rows"]:
            groups.setdefault(key(row), []).append(row)
    rows = [_merged(rows) for rows in groups.values()]
    compare_with_first(rows)
    first = next(iter(documents.values()))
    kept = {name: value for name, value in first.items() if name in (*SAME, "ranks", "environment")}
    merged = {
        "format": FORMAT, "version": VERSION, "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "definition": "t: median over launches of the launch's median; spread: slowest less fastest launch over it",
        **kept, "sources": list(documents), "differences": differences(documents),
        "noise": {name: document["noise"] for name, document in documents.items() if document.get("noise")},
        "rows": rows,
    }  # fmt: skip
    return cast(Document, merged)


def _check(documents: Mapping[str, Document]) -> None:
    if len(documents) < 2:
        raise InvalidArgument(f"merging takes the files of two launches or more, got {len(documents)}")
    seen: dict[str, str] = {}
    for name, document in documents.items():
        if any((row["launches"] or 1) > 1 for row in document["rows"]):
            raise InvalidArgument(f"{name} is a merged file: merge the files of the launches themselves")
        content = repr(document["rows"])
        if content in seen:
            raise InvalidArgument(f"{name} and {seen[content]} hold the same launch: give each once")
        seen[content] = name


def differences(documents: Mapping[str, Document]) -> list[str]:
    """The facts that launches should have in common and do not."""
    found = []
    for name in SAME:
        values = {repr(document.get(name)) for document in documents.values() if name in document}
        if len(values) > 1:
            found.append(f"the launches differ in {name}: {'; '.join(sorted(values))}")
    hosts = {tuple(sorted({one["host"] for one in document["ranks"]})) for document in documents.values()
             if "ranks" in document}  # fmt: skip
    if len(hosts) > 1:
        found.append("the launches ran on different hosts")
    return found


def _merged(rows: list[Row]) -> Row:
    if len(rows) == 1:  # one launch has no spread of launches: its rounds say how sure its median is
        return {**rows[0], "launches": 1, "baseline_us": None, "change_pct": None, "regressed": None}
    ordered = sorted(rows, key=lambda row: row["t_med_us"])
    middle, times = ordered[(len(rows) - 1) // 2], [row["t_med_us"] for row in ordered]
    median = statistics.median(times)
    faster = middle["t_med_us"] / median
    checked = [row["ok"] for row in rows if row["ok"] is not None]
    wrong = [row["n_wrong"] for row in rows if row["n_wrong"] is not None]
    return {
        **middle, "algbw_gbs": middle["algbw_gbs"] * faster,
        "busbw_gbs": None if middle["busbw_gbs"] is None else middle["busbw_gbs"] * faster,
        "t_med_us": median, "ci_low_us": None, "ci_high_us": None,
        "spread_pct": 100 * (times[-1] - times[0]) / median,
        "launches": len(rows), "t_low_us": times[0], "t_high_us": times[-1],
        "n_wrong": max(wrong, default=None), "ok": all(checked) if checked else None,
        "baseline_us": None, "change_pct": None, "regressed": None,
    }  # fmt: skip

