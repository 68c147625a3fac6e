"""What is said in the same words on a terminal and on the report page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .units import count, nbytes, number, some_ranges, time_of

#: Quantities of a scheme in ``mpicomp.trace.codec``: what they are called, their column, how they are shown.
SCHEME_ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("was it worth it?", "worth", str), ("steps", "steps", str), ("dense bytes", "dense", nbytes),
    ("sent", "sent", nbytes), ("less by", "ratio", lambda x: f"{number(x)} x"), ("density", "density", number),
    ("time of the step", "time", time_of), ("compressing", "compression", time_of),
    ("compressing, hidden", "hidden", time_of), ("communicating", "communication", time_of),
    ("both, without waiting", "cost", time_of), ("dense would take", "dense_time", time_of),
    ("says", "basis", lambda x: x or "-"),
    ("pays below", "break_even", lambda x: f"{number(x)} GB/s"),
)  # fmt: skip


def culprit(cause: str, rank: int, ranks: int) -> str:
    """Who made a spike, of the table ``spikes``."""
    if cause == "rank":
        return f"rank {rank}"
    return f"{ranks} ranks, most rank {rank}" if cause == "ranks" else cause


def settings(configuration: dict[str, Any]) -> str:
    """The configuration of a run in a line, without what was left open or off."""
    said = {name: ",".join(map(str, value)) if isinstance(value, list) else value
            for name, value in configuration.items() if value is not None and value is not False}  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in said.items() if value != "") or "-"


def shortcomings(
    not_closed: dict[int, str], n_dropped: int, missing_parts: str = "", n_backwards: int = 0
) -> list[str]:
    """What a reader of a trace must know before its numbers, a line each; of what ``mpicomp.trace.info`` found."""
    states: dict[str, list[int]] = {}
    for rank, state in not_closed.items():
        states.setdefault(state, []).append(int(rank))
    said = "; ".join(f"{state}: rank {some_ranges(ranks)}" for state, ranks in states.items())
    lines = [f"INCOMPLETE: {text}" for text in (said, missing_parts) if text]
    if n_dropped:
        lines.append(f"{count(n_dropped, 'event')} dropped: the disk was full")
    return lines + ([f"{count(n_backwards, 'event')} ending before their begin"] if n_backwards else [])
