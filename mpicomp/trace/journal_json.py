"""Validation of the JSON in a journal, which may come from anywhere.

Each function returns its value in the promised form or raises ``ValueError`` naming what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from . import schema
from .clock import Comparison
from .metadata import RankMetadata
from .tables import Result

_INT64 = 1 << 63
_RANK_TEXTS = ("hostname", "cpus", "clock")


class Head(TypedDict):
    """First frame of a journal."""

    run: Result
    rank: RankMetadata
    records: dict[str, object]


class OpenEvent(TypedDict):
    """An event that had not ended when it was written down, at ``t`` (ns)."""

    kind: str
    step: int
    t_start: int
    t: int


class Ending(TypedDict):
    """Why a rank stopped recording, and how many events it dropped."""

    reason: str
    n_dropped: int


def head(value: Head) -> Head:
    run, rank = value["run"], value["rank"]
    _whole(run["n_ranks"], "n_ranks")
    _text(run["run_id"], "run_id")
    if not all(isinstance(fact, (str, int, float, bool, list, dict)) for fact in run.values()):
        raise ValueError(f"metadata of the run are {run}")
    _whole(rank["rank"], "rank")
    _whole(rank.get("pid", -1), "pid")
    for name in _RANK_TEXTS:
        _text(rank.get(name), name)
    return value


def labels(entries: list[tuple[object, list[object]]]) -> dict[int, tuple[str, ...]]:
    """Codes of 16 bits and the strings of each."""
    named = {_whole(code, "code"): tuple(_text(name, "label") for name in label) for code, label in entries}
    for code, label in named.items():
        if not 0 <= code < 1 << 16 or len(label) != len(schema.LABEL_FIELDS):
            raise ValueError(f"label {code} is {label}")
    return named


def names(entries: list[tuple[object, object]]) -> dict[int, str]:
    return {_whole(code, "code"): _text(name, "name of a metric") for code, name in entries}


def comparisons(entries: list[Mapping[str, object]]) -> list[Comparison]:
    return [Comparison(t_local=_whole(entry["t_local"], "t_local"), offset=_whole(entry["offset"], "offset"),
                       rtt=_whole(entry["rtt"], "rtt")) for entry in entries]  # fmt: skip


def open_event(entry: Mapping[str, object]) -> OpenEvent:
    return OpenEvent(kind=_text(entry["kind"], "kind"), step=_whole(entry["step"], "step"),
                     t_start=_whole(entry["t_start"], "t_start"), t=_whole(entry["t"], "t"))


def ending(value: Mapping[str, object]) -> Ending:
    reason, n_dropped = _text(value["reason"], "reason"), _whole(value["n_dropped"], "n_dropped")
    if reason not in schema.STATUS:
        raise ValueError(f"reason is {reason!r}")
    if n_dropped < 0:
        raise ValueError(f"n_dropped is {n_dropped}")
    return Ending(reason=reason, n_dropped=n_dropped)


def _whole(value: object, what: str) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError(f"{what} is {value!r}, expected a whole number")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.isascii():
        raise ValueError(f"{what} is {value!r}, expected ASCII text")
    return value
