"""How the analyses of a trace are shown: a few facts, a table, and what the clocks allow to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ...trace.units import count, duration, nbytes, number, percent, some_ranges, sparkline, time_of
from ...trace.wording import SCHEME_ROWS, culprit
from .console import new_table, show_clocks, show_fact

_MOST_ROWS = 20
Columns = Sequence[tuple[str, str, Callable[[Any], str]]]


def _gbs(value: float) -> str:
    return number(value, 3)


def _number(value: float) -> str:
    return number(value, 5)


def _rows(console: Console, table: dict[str, Any], columns: Columns, left: int = 1, rows: Any = None) -> None:
    """Columns (title, name, format) of a table; at most twenty of the given ``rows``, and how many are left out."""
    shown = np.arange(len(table[columns[0][1]])) if rows is None else np.asarray(rows, np.int64)
    printed = new_table(console, *(title for title, _, _ in columns), left=left)
    for row in shown[:_MOST_ROWS]:
        printed.add_row(*(Text(str(show(table[name][row]))) for _, name, show in columns))
    console.print(printed)
    if len(shown) > _MOST_ROWS:
        console.print(f"... and {len(shown) - _MOST_ROWS} more (--json has all)", markup=False)


def steps(console: Console, result: dict[str, Any]) -> None:
    if not result["count"]:
        show_fact(console, "steps", "none recorded")
        return
    facts = ", ".join(f"{name} {duration(result[name])}" for name in ("median", "p99", "max", "first"))
    show_fact(console, "steps", f"{result['count']}: {facts}")
    if result["drift"] is not None:
        noise = f"noise {result['drift_noise']:.1%}"
        course = f"{result['drift']:+.1%} from the first third to the last ({noise})"
        show_fact(console, "drift", course if result["drifts"] else f"none beyond the noise: {course}")
    if console.encoding.startswith("utf"):
        show_fact(console, "course", sparkline(result["steps"]["duration"].tolist()))
    table = result["steps"]
    columns = [(name, name, time_of) for name in ("compute", "compression", "communication", "other")]
    longest = np.argsort(-table["duration"], kind="stable")[:_MOST_ROWS]
    console.print()
    _rows(console, table, [("longest steps", "step", str), ("duration", "duration", time_of),
                           ("median rank", "median_rank", time_of), ("slowest", "slowest_rank", str), *columns],
          rows=longest)  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def breakdown(console: Console, result: dict[str, Any]) -> None:
    _rows(console, result["overall"], [("phase", "kind", str), ("class", "class", str), ("share", "share", percent),
          ("total", "time", time_of), ("mean rank", "mean", time_of), ("least", "min", time_of),
          ("most", "max", time_of), ("of rank", "slowest_rank", str), ("cv", "cv", percent)], left=2)  # fmt: skip
    console.print()
    table, span = result["ranks"], np.maximum(result["ranks"]["span"], 1)
    names = [name for name in table if name not in ("rank", "span")]
    shares = {name: table[name] / span for name in names}
    _rows(console, {**table, **shares}, [("rank", "rank", str), ("recorded", "span", time_of),
          *((name, name, percent) for name in names)])  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def overlap(console: Console, result: dict[str, Any]) -> None:
    if result["share"] is None:
        show_fact(console, "overlap", "no communication was recorded")
        return
    whole, hidden, exposed = (duration(result[name]) for name in ("communication", "hidden", "exposed"))
    said = f"{result['share']:.1%} of the communication is hidden: {hidden} of {whole}; {exposed} are waited for"
    show_fact(console, "overlap", said)
    if result["enclosed"]:
        counted = "hidden" if result["enclosed_counts_as_hidden"] else "exposed"
        right = "right only if those calls " + ("do not block" if counted == "hidden" else "block")
        inside = duration(result["enclosed"])
        show_fact(console, "", f"{inside} lie wholly inside a computation and count as {counted}: {right}")
    console.print()
    table = result["ranks"]
    times = [(name, name, time_of) for name in ("communication", "hidden", "exposed", "enclosed")]
    _rows(console, table, [("rank", "rank", str), *times, ("hidden", "share", percent)],
          rows=np.argsort(-table["exposed"], kind="stable"))  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def collectives(console: Console, result: dict[str, Any]) -> None:
    table = result["collectives"]
    if not table:
        show_fact(console, "collectives", "none recorded")
        return
    labels = [(name, name, str) for name in ("kind", "algo", "scheme")]
    _rows(console, table, [*labels, ("size", "size_bin", nbytes), ("calls", "calls", str), ("time", "time", time_of),
          ("p90", "p90", time_of), ("slowest", "slowest", time_of), ("wait", "wait", time_of), ("sent", "sent", nbytes),
          ("algbw", "algbw", _gbs), ("busbw", "busbw", _gbs)], left=3)  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def stragglers(console: Console, result: dict[str, Any]) -> None:
    if result["kind"] is None:
        show_fact(console, "stragglers", "no communication of several ranks was recorded")
        return
    table, late = result["ranks"], result["late_ranks"]
    show_fact(console, "measured at", f"{count(result['calls'], 'call')} of {result['kind']}")
    if result["absent"]:
        show_fact(console, "absent", f"rank {some_ranges(result['absent'])} never came")
    show_fact(console, "late", f"rank {some_ranges(late)}" if late else "no rank, beyond clocks and noise")
    console.print()
    doubt = np.maximum(table["uncertainty"], table["noise"])
    _rows(console, {**table, "doubt": doubt}, [("rank", "rank", str), ("node", "node", str),
          ("lateness", "lateness", time_of), ("+-", "doubt", time_of), ("p90", "p90", time_of),
          ("late to", "late", percent), ("last at", "last", percent), ("delayed all by", "caused", time_of)],
          rows=np.lexsort((-table["lateness"], ~table["significant"]))[:_MOST_ROWS])  # fmt: skip
    console.print()
    _rows(console, result["kinds"], [("kind", "kind", str), ("calls", "calls", str), ("median wait", "wait", time_of),
                                     ("all waits", "total_wait", time_of)])  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def spikes(console: Console, result: dict[str, Any]) -> None:
    if not result["count"]:
        show_fact(console, "spikes", f"none in {count(result['steps'], 'step')}")
        return
    show_fact(console, "spikes", f"{result['count']} of {count(result['steps'], 'step')} above "
               f"{duration(result['limit'])}; median {duration(result['median'])}")  # fmt: skip
    console.print()
    table = result["spikes"]
    who = [culprit(*row) for row in zip(table["cause"], table["rank"], table["ranks"], strict=True)]
    _rows(console, {**table, "who": who}, [("step", "step", str), ("who", "who", str), ("phase", "phase", str),
          ("duration", "duration", time_of), ("x median", "ratio", _gbs), ("excess", "excess", time_of),
          ("of the phase", "phase_excess", time_of)], left=3)  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


def codec(console: Console, result: dict[str, Any]) -> None:
    table = result["schemes"]
    if table:
        quantities = new_table(console, "a rank and step", *table["scheme"])
        for title, name, show in SCHEME_ROWS:
            quantities.add_row(title, *(show(value) for value in table[name]))
        console.print(quantities)
    if result["reason"]:
        show_fact(console, "note", result["reason"])
    show_clocks(console, result["clock_uncertainty"])


def measures(console: Console, result: dict[str, Any]) -> None:
    if result["metrics"]:
        table = result["metrics"]
        courses = [[None if x != x else x for x in result["steps"][name].tolist()] for name in table["metric"]]
        drawn = [sparkline([x for x in course if x is not None]) for course in courses]
        drawn = drawn if console.encoding.startswith("utf") else [""] * len(drawn)
        numbers = [(name, name, _number) for name in ("first", "last", "least", "greatest")]
        _rows(console, {**table, "course": drawn}, [("metric", "metric", str), ("steps", "steps", str), *numbers,
              ("change", "change", percent), ("course", "course", str)])  # fmt: skip
    for remark in result["remarks"]:
        show_fact(console, "note", remark)
    show_clocks(console, result["clock_uncertainty"])


def bandwidth(console: Console, result: dict[str, Any]) -> None:
    table = result["bandwidth"]
    if not len(table["algo"]):
        show_fact(console, "bandwidth", "no dense all-reduce with its size was recorded")
        return
    _rows(console, table, [("algorithm", "algo", str), ("size", "nbytes", nbytes), ("calls", "calls", str),
          ("time", "time", time_of), ("p10 GB/s", "p10", _gbs), ("median", "median", _gbs),
          ("p90", "p90", _gbs)])  # fmt: skip
    console.print()
    _rows(console, result["model"], [("model", "algo", str), ("latency", "latency", time_of), ("busbw", "busbw", _gbs),
          ("half of it at", "half_size", nbytes)])  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])


_POP = (
    ("parallel efficiency", "parallel_efficiency", 0, "useful time of the mean rank / run time"),
    ("load balance", "load_balance", 1, "mean / most useful time of a rank"),
    ("communication efficiency", "communication_efficiency", 1, "most useful time of a rank / run time"),
    ("serialisation", "serialisation", 2, "lost by ranks waiting for each other even on an ideal network"),
    ("transfer", "transfer", 2, "lost to the network: ideal / run time"),
    ("computation share", "computation_share", 0, "of the useful time, not compression"),
)


def efficiency(console: Console, result: dict[str, Any]) -> None:
    if not result["steps"]:
        show_fact(console, "efficiency", result["reason"])
        return
    show_fact(console, "run time", f"{duration(result['time'])} of {count(result['steps'], 'step')} on "
               f"{count(len(result['ranks']['rank']), 'rank')}")  # fmt: skip
    console.print()
    table = {"name": ["  " * depth + title for title, _, depth, _ in _POP], "says": [says for *_, says in _POP],
             "value": [percent(result[name]) for _, name, _, _ in _POP]}  # fmt: skip
    _rows(console, table, [("metric", "name", str), ("value", "value", str), ("meaning", "says", str)],
          left=3)  # fmt: skip
    if result["reason"]:
        show_fact(console, "note", result["reason"])
    show_clocks(console, result["clock_uncertainty"])


def diff(console: Console, result: dict[str, Any]) -> None:
    show_fact(console, "steps", f"{result['steps_a']} in A, {result['steps_b']} in B")
    sent = f"{nbytes(result['bytes_a'])} in A, {nbytes(result['bytes_b'])} in B, per rank and step"
    show_fact(console, "sent", sent)
    for name, (a, b) in result["different"].items():
        show_fact(console, "differs", f"{name}: A {a}, B {b}")
    console.print()
    if result["phases"]:
        _rows(console, result["phases"], [("phase", "kind", str), ("B is", "verdict", str), ("A", "a", time_of),
              ("B", "b", time_of), ("B - A", "change", time_of), ("noise", "noise", time_of), ("B / A", "ratio", _gbs)],
              left=2)  # fmt: skip
    show_fact(console, "note", "one launch each says little of the next: noise within these launches only")
    show_clocks(console, result["clock_uncertainty"])


def hang(console: Console, result: dict[str, Any]) -> None:
    table = result["ranks"]
    if result["suspects"]:
        console.print(Text(f"SUSPECT        rank {some_ranges(result['suspects'])}: {result['why']}", style="bold red"))
    else:
        show_fact(console, "hang", result["why"])
    show_fact(console, "last step", f"{result['last_step']} finished by all ranks, {result['furthest_step']} by some")
    suspect = np.isin(table["rank"], result["suspects"])
    doing = [f"{kind} of step {step}" if kind and step >= 0 else kind or "not known"
             for kind, step in zip(table["in"], table["in_step"], strict=True)]  # fmt: skip
    console.print()
    _rows(console, {**table, "doing": doing}, [("rank", "rank", str), ("is in", "doing", str),
          ("status", "status", str), ("last step", "step", str), ("last event", "last", str), ("calls", "calls", str),
          ("last record", "behind", lambda ns: f"{duration(ns)} before the last of all" if ns == ns else "none")],
          left=7, rows=np.lexsort((table["rank"], ~suspect)))  # fmt: skip
    show_clocks(console, result["clock_uncertainty"])
