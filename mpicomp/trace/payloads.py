"""What the JSON in a journal must look like. A journal may come from anywhere, and whole frames can say nonsense:
each function returns its value as promised or raises ``ValueError``, with what it found."""

from __future__ import annotations

from typing import Any

from . import schema

_INT64 = 1 << 63
_RANK_TEXTS = ("hostname", "cpus", "clock")


def head(value: dict[str, Any]) -> dict[str, Any]:
    """Facts of the run and of the rank."""
    run, rank = value["run"], value["rank"]
    _whole(run["n_ranks"], "n_ranks")
    _text(run["run_id"], "run_id")
    if not all(isinstance(fact, (str, int, float, bool, list, dict)) for fact in run.values()):
        raise ValueError(f"facts of the run are {run}")
    _whole(rank["rank"], "rank")
    _whole(rank.get("pid", -1), "pid")
    for name in _RANK_TEXTS:
        _text(rank[name], name)
    return value


def labels(entries: Any) -> dict[int, tuple[str, ...]]:
    """Codes of 16 bits and the strings of each."""
    named = {_whole(code, "code"): tuple(_text(name, "label") for name in label) for code, label in entries}
    for code, label in named.items():
        if not 0 <= code < 1 << 16 or len(label) != len(schema.LABEL_FIELDS):
            raise ValueError(f"label {code} is {label}")
    return named


def names(entries: Any) -> dict[int, str]:
    return {_whole(code, "code"): _text(name, "name of a metric") for code, name in entries}


def comparisons(entries: Any) -> list[dict[str, int]]:
    """Comparisons of clocks."""
    return [{name: _whole(entry[name], name) for name in ("t_local", "offset", "rtt")} for entry in entries]


def unfinished(entry: Any) -> dict[str, Any]:
    """What a rank has been in for long."""
    return {"kind": _text(entry["kind"], "kind"),
            **{name: _whole(entry[name], name) for name in ("step", "t_start", "t")}}


def ending(value: dict[str, Any]) -> dict[str, Any]:
    """Why a rank stopped recording."""
    if value["reason"] not in schema.STATUS:
        raise ValueError(f"reason is {value['reason']!r}")
    if _whole(value["n_dropped"], "n_dropped") < 0:
        raise ValueError(f"n_dropped is {value['n_dropped']}")
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError(f"{what} is {value!r}, expected a whole number")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.isascii():
        raise ValueError(f"{what} is {value!r}, expected ASCII text")
    return value
