"""Validation of the JSON in a journal, which may come from anywhere.

Each function returns its value in the promised form or raises ``ValueError`` naming what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, TypeVar, cast, get_type_hints

from . import schema
from .clock import Comparison
from .metadata import RankMetadata
from .tables import Result

_INT64 = 1 << 63

T = TypeVar("T")


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
    _typed(RankMetadata, {"pid": -1, **rank})  # the only one that a journal may lack
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
    return [_typed(Comparison, entry) for entry in entries]


def open_event(entry: Mapping[str, object]) -> OpenEvent:
    return _typed(OpenEvent, entry)


def ending(value: Mapping[str, object]) -> Ending:
    found = _typed(Ending, value)
    if found["reason"] not in schema.STATUS:
        raise ValueError(f"reason is {found['reason']!r}")
    if found["n_dropped"] < 0:
        raise ValueError(f"n_dropped is {found['n_dropped']}")
    return found


def _typed(kind: type[T], value: Mapping[str, object]) -> T:
    """The entries of a TypedDict, each of its type: a whole number or a text."""
    checks = {int: _whole, str: _text}
    return cast(T, {name: checks[hint](value[name], name) for name, hint in get_type_hints(kind).items()})


def _whole(value: object, what: str) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError(f"{what} is {value!r}, expected a whole number")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.isascii():
        raise ValueError(f"{what} is {value!r}, expected ASCII text")
    return value
