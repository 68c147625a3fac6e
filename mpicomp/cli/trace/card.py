"""What ``mpicomp trace info``, ``summary`` and ``report`` show: the run's card, phases, imbalance and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...trace.units import count, digits, duration, nbytes, number, sparkline
from ...trace.wording import shortcomings
from .console import new_table, roomy_console, show_clocks, show_fact

_MOST_RANKS = 16  # the latest ranks are named, no more
_MOST_ROWS = 100  # of a summary


def show_card(console: Console, file: Path, card: dict[str, Any]) -> None:
    show_fact(console, "trace", file)
    if card.get("title"):
        show_fact(console, "title", card["title"])
    hosts = card["hosts"]
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    show_fact(console, "ranks", f"{card.get('n_ranks')} on {count(len(hosts), 'node')} ({shown})")
    show_fact(console, "recorded", f"{count(card['n_events'], 'event')} in {duration(card['duration'])}")
    show_fact(console, "created", f"{card.get('created')} by {card.get('creator')}")
    show_fact(console, "command", " ".join(card["command_line"]))
    warn(console, card["ranks_not_closed"], card["n_dropped"], card["missing_parts"], card["n_backwards"])


def warn(console: Console, not_closed: dict[int, str], n_dropped: int, *more: Any) -> None:
    """``shortcomings`` in red."""
    for line in shortcomings(not_closed, n_dropped, *more):
        console.print(Text(line, style="bold red"), soft_wrap=True)


def show_summary(console: Console, keys: list[str], rows: list[dict[str, Any]]) -> None:
    """Rows of ``mpicomp.trace.summary``: those with the longest total come first, and are enough to read."""
    console.print(_summary_table(keys, rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        console.print(f"... and {len(rows) - _MOST_ROWS} more (--json has all)", markup=False)
    show_clocks(console, None)


def _summary_table(keys: list[str], rows: list[dict[str, Any]]) -> Table:
    heads = ["size" if key == "size_bin" else key for key in keys]
    table = new_table(roomy_console(), *heads, "count", "median", "p99", "total", "sent", left=len(keys))
    for row in rows:
        cells = [nbytes(row[key]) if key == "size_bin" else str(row[key]) for key in keys]
        times = [duration(row[name]) for name in ("median", "p99", "total")]
        table.add_row(*(Text(cell) for cell in cells), str(row["count"]), *times, nbytes(row["nbytes_sent"]))
    return table


def show_phases(console: Console, result: dict[str, Any]) -> None:
    console.print()
    table = new_table(console, "phase", "count", "median", "p99", "total", "share", "sent")
    for row in result["phases"]:
        times = [duration(row[name]) for name in ("median", "p99", "total")]
        table.add_row(Text(row["kind"]), str(row["count"]), *times, f"{row['share']:.1%}", nbytes(row["nbytes_sent"]))
    console.print(table)
    console.print()
    steps, traffic = result["steps"], result["traffic"]
    if steps["count"]:
        shown = ", ".join(f"{name} {duration(steps[name])}" for name in ("median", "p99", "first"))
        show_fact(console, "steps", f"{steps['count']}: {shown}")
    if traffic["kind"]:
        sent = f"{nbytes(traffic['nbytes_sent_per_rank_and_step'])} per rank and step"
        rate = traffic["compression_rate"]
        show_fact(console, "sent", sent + (f", {_compared(rate)} a dense all-reduce" if rate else ""))


def show_imbalance(console: Console, imbalance: dict[str, Any]) -> None:
    if not imbalance["kind"]:
        return
    uncertainty = imbalance["clock_uncertainty"]
    known = f"clocks known to {duration(uncertainty)}" if uncertainty else "all ranks read one clock"
    wait = f"the last rank comes {duration(imbalance['median_wait'])} after the median one"
    show_fact(console, "imbalance", f"at {imbalance['kind']} {wait} ({known})")
    if not imbalance["significant"]:
        show_fact(console, "", "no rank is later than the others by more than the clocks can tell")
        return
    late = [(value, rank) for rank, value in enumerate(imbalance["lateness"]) if value is not None]
    said = ", ".join(f"{rank}: {duration(value)}" for value, rank in sorted(late, reverse=True)[:_MOST_RANKS])
    show_fact(console, "", f"median lateness of rank {said}")


def show_metrics(console: Console, metrics: dict[str, dict[str, Any]]) -> None:
    if not metrics:
        return
    console.print()
    table = new_table(console, "metric", "steps", "first", "last", "min", "course")
    for name, course in metrics.items():
        numbers = [number(course[key], 5) for key in ("first", "last", "min")]
        spark = sparkline(course["values"]) if console.encoding.startswith("utf") else ""
        table.add_row(Text(name), str(len(course["steps"])), *numbers, spark)
    console.print(table)


def _compared(rate: float) -> str:
    if 0.99 < rate < 1.01:
        return "as much as"
    return f"{digits(rate, 3)} x less than" if rate > 1 else f"{digits(1 / rate, 3)} x more than"
