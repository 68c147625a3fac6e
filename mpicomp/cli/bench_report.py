"""How ``mpicomp bench`` reports: a table that grows with every size, or one JSON document."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from .._version import __version__
from ..bench import Plan, environment
from ..bench.plan import show_size
from ..bench.rows import wrong_results
from . import guard
from .console import Column, Progress, plain_line, print_table, width_of

NARROW = 100  # columns of a terminal below which the table leaves out what is in the document anyway
FOREIGN_LIMIT = 0.05  # share of the CPUs used by others above which times are doubtful

MAIN = (
    Column("size", 9), Column("implementation", 14, left=True), Column("time us", 9), Column("p99 us", 9),
    Column("spread", 6), Column("rounds", 6), Column("algbw", 7), Column("busbw", 7), Column("sent", 10),
    Column("vs", 6), Column("result", 6, left=True),
)  # fmt: skip
WIDE_ONLY = ("p99 us", "spread", "rounds", "result")


def head(comm: Any, plan: Plan) -> dict[str, Any]:
    """What the document says beside the rows (collective)."""
    table = environment.ranks(comm)
    return {
        "format": "mpicomp-bench",
        "version": 1,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "definition": "t: median over rounds of the maximum over ranks, after a barrier; GB/s = 1e9 bytes/s",
        "versions": environment.versions(),
        "mpi": guard.library(),
        "seed": plan.seed,
        "ranks": table,
        "environment": environment.allowed_environment(),
    }


def dry_run(comm: Any, plan: Plan) -> None:
    """What a run would measure, and what it would take."""
    if comm.rank != 0:
        return
    vectors = 3 * bool(plan.algorithms) + (7 + 2 * len(plan.schemes)) * bool(plan.schemes)
    click.echo(f"ranks            {comm.size}")
    click.echo(f"sizes            {', '.join(show_size(nbytes) for nbytes in plan.sizes)}")
    click.echo(f"implementations  {' '.join((*plan.algorithms, *plan.schemes))}")
    click.echo(f"memory a rank    about {show_size(vectors * max(plan.sizes))}")
    click.echo(f"time             about {1.5 * len(plan.sizes) * plan.max_time:.0f} s, if single steps are short")


class Report:
    """Collects rows; prints them on rank 0 as they come, or at once on a terminal or as JSON."""

    def __init__(self, comm: Any, plan: Plan, as_json: bool, progress: Progress) -> None:
        self._comm, self._plan, self._progress = comm, plan, progress
        self._prints = comm.rank == 0 and not as_json
        self._width = width_of(sys.stdout)
        self._noise = environment.Noise()
        self._rows: list[dict[str, Any]] = []
        longest = max(map(len, (*plan.algorithms, *plan.schemes)))
        self._widths = [longest if column.title == "implementation" else column.width for column in MAIN]

    def progress(self, text: str) -> None:
        self._progress(text)

    @property
    def wrong(self) -> list[str]:
        """One line for each row with wrong elements."""
        return wrong_results(self._rows)

    def begin(self) -> None:
        """The lines that say what is measured (collective)."""
        table = environment.ranks(self._comm)
        if not self._prints:
            return
        for line in header(self._plan, table):
            self._comment(line)
        if self._width is None:
            click.echo(plain_line([column.title for column in MAIN], MAIN, self._widths))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows += rows
        if self._prints and self._width is None:
            for row in rows:
                click.echo(plain_line(cells(row), MAIN, self._widths))
            sys.stdout.flush()

    def end(self, head: dict[str, Any]) -> dict[str, Any]:
        """The rest of the table, what the schemes say, the noise; the whole document (collective)."""
        self._progress.clear()
        noise = self._measured_noise(head["ranks"])
        if self._prints:
            if self._width is not None:
                self._print_terminal(self._width)
            self._print_schemes()
            self._comment(f"noise: {noise['text']}")
        return {**head, "noise": noise, "rows": self._rows}

    def _comment(self, line: str) -> None:
        """A line that is not data; folded on a terminal, whole for programs."""
        for part in textwrap.wrap(line, self._width - 4, subsequent_indent="  ") if self._width else [line]:
            click.echo(f"# {part}")

    def _print_terminal(self, width: int) -> None:
        shown = [i for i, column in enumerate(MAIN) if width >= NARROW or column.title not in WIDE_ONLY]
        print_table([MAIN[i] for i in shown], [[cells(row)[i] for i in shown] for row in self._rows])

    def _print_schemes(self) -> None:
        """Where the time of the schemes goes; phases differ between exchanges, so each scheme has its own table."""
        for scheme in self._plan.schemes:
            rows = [row for row in self._rows if row["scheme"] == scheme]
            phases = list(rows[0]["t_phase_us"])
            titles = ("size", "density", "sent", "ratio", *phases)
            columns = [Column(title) for title in titles]
            click.echo()
            print_table(columns, [scheme_cells(row, phases) for row in rows], title=f"{scheme} (phases in us)")

    def _measured_noise(self, table: list[dict[str, Any]]) -> dict[str, Any]:
        """How far the machine was this job's alone (collective)."""
        foreign = self._noise.share(self._comm)
        crowded = environment.oversubscribed(table)
        binding = environment.binding(table)
        doubtful = " (above 5 %: repeat on a quiet machine)" if foreign > FOREIGN_LIMIT else ""
        text = (
            f"other processes used {foreign:.0%} of the CPUs{doubtful}; "
            f"{f'OVERSUBSCRIBED, {crowded}' if crowded else 'a CPU for each rank'}; binding {binding}"
        )
        return {"foreign_cpu_share": foreign, "oversubscribed": crowded, "binding": binding, "text": text}


def header(plan: Plan, table: list[dict[str, Any]]) -> list[str]:
    """What the table's figures mean."""
    hosts = environment.nodes(table)
    first = (*plan.algorithms, *plan.schemes)[0]
    place = "in place" if plan.place == "in" else "out of place"
    lines = [
        f"mpicomp {__version__} bench {plan.collective}: sum of {plan.dtype}, {place}",
        f"{len(table)} {'rank' if len(table) == 1 else 'ranks'} on {', '.join(hosts)}; {guard.library()['name']}",
        "time: median over rounds of the slowest rank's time, after a barrier; implementations take turns",
        "algbw, busbw: GB/s = 1e9 bytes/s; sent: bytes a rank sends in a step (~ by formula, inside MPI's own call)",
        f"vs: times as fast as {first}",
    ]
    if plan.schemes:
        lines.append("schemes: one step of a constant gradient with error memory, returning the sparse mean")
    return lines


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the main table."""
    verdict = {True: "ok", False: "WRONG", None: "-"}[row["ok"]]
    return [
        show_size(row["nbytes"]), row["algorithm"] or row["scheme"], micros(row["t_med_us"]), micros(row["t_p99_us"]),
        f"{row['spread_pct']:.0f}%", str(row["iters"]), figures(row["algbw_gbs"]), figures(row["busbw_gbs"]),
        sent(row), f"{row['vs']:.2f}x", verdict,
    ]  # fmt: skip


def scheme_cells(row: dict[str, Any], phases: Sequence[str]) -> list[str]:
    """One line of a scheme's own table."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.1f}"
    times = (micros(row["t_phase_us"][name]) for name in phases)
    return [show_size(row["nbytes"]), f"{row['density']:.4g}", sent(row), ratio, *times]


def sent(row: dict[str, Any]) -> str:
    """Bytes on the wire, marked where they are a formula's."""
    return ("~" if row["wire_modelled"] else "") + show_size(row["wire_bytes"]) if row["wire_bytes"] else "-"


def micros(value: float) -> str:
    """Microseconds with three digits or more."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def figures(value: float | None) -> str:
    """GB/s with three digits; "-" where it means nothing."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 10 else f"{value:.1f}"
