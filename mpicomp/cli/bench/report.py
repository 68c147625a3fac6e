"""The report of ``mpicomp bench``: collects rows, prints them in a layout, adds facts about the whole run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from ..._util import environment_variables
from ..._util.plurals import count
from ..._version import __version__
from ...bench import Plan, documents, environment
from ...bench.compare import Baseline
from ...bench.plan import show_size
from ...bench.rows import closing, differing, label, ranks_of
from ...bench.schema import Document, Row
from .. import config, mpi
from ..console import Progress
from .layouts import Csv, Json, Layout, Look, Nccl, Osu, Rows
from .table import Markdown, Table

if TYPE_CHECKING:
    from ...comm.comm import Comm

LAYOUTS: dict[str, type[Layout]] = {"table": Table, "markdown": Markdown, "csv": Csv, "jsonl": Rows, "json": Json,
                                    "nccl": Nccl, "osu": Osu}  # fmt: skip
MOST_CUT = 4  # cut sizes in the head of a table


def head(comm: Comm, plan: Plan) -> Document:
    """The facts of a document beside the rows (collective)."""
    table = environment.ranks(comm)
    if plan.device == "gpu":
        from ...bench.devices import device_of_rank

        for one, gpu in zip(table, comm.allgather(device_of_rank(table[comm.rank]["local_rank"])), strict=True):
            one["gpu"] = gpu
    return {
        "format": documents.FORMAT,
        "version": documents.VERSION,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "config": {"file": config.used(click.get_current_context(silent=True)), **asdict(plan)},
        "definition": "t: median over rounds of the maximum over ranks, after a barrier; GB/s = 1e9 bytes/s",
        "versions": environment.versions(),
        "mpi": mpi.library(),
        "seed": plan.seed,
        "ranks": table,
        "environment": environment_variables.explaining(),
    }


def dry_run(comm: Comm, plan: Plan) -> None:
    """Print the plan with the memory and time that it would take."""
    if comm.rank != 0:
        return
    vectors = 3 * bool(plan.algorithms) + 5 * bool(plan.bounds) + (7 + 2 * len(plan.schemes)) * bool(plan.schemes)
    many = plan.cycles * len(plan.parts) * len(plan.sizes)
    for name, value in {
        "collective": plan.collective,
        "ranks": str(comm.size),
        "sizes": ", ".join(show_size(nbytes) for nbytes in plan.sizes),
        "implementations": ", ".join(plan.names),
        "memory per rank": f"about {show_size(vectors * max(plan.sizes))}",
        "time": f"about {1.5 * many * plan.max_time:.0f} s, if single steps are short",
    }.items():
        click.echo(f"{name:<17}{value}")


class Report:
    """Collects the rows of a run; rank 0 prints them in a layout."""

    def __init__(self, comm: Comm, plan: Plan, layout: str, progress: Progress, baseline: Baseline | None) -> None:
        self._comm, self._plan, self._progress, self._baseline = comm, plan, progress, baseline
        differ = (*["dtype"] * (len(plan.parts) > 1), *["cycle"] * (plan.cycles > 1))
        self._layout = LAYOUTS[layout](Look(_names(plan), baseline is not None, differ, len(plan.places) > 1))
        self._prints = comm.rank == 0
        self._noise = environment.Noise()
        self._rows: list[Row] = []

    def begin(self) -> None:
        """Print the head (collective)."""
        table = environment.ranks(self._comm)
        if self._prints:
            self._layout.begin(header(self._plan, table, self._comm.gpu_path))

    def add(self, rows: Sequence[Row]) -> None:
        """Print the rows of one size."""
        if self._baseline is not None:
            self._baseline.compare(rows)
        self._rows += rows
        if self._prints:
            self._layout.add(rows)
            sys.stdout.flush()

    def end(self, head: Document) -> Document:
        """Print the noise and the comparison with the first implementation; return the document (collective)."""
        self._progress.clear()
        noise = self._measured_noise(head["ranks"])
        document: Document = {**head, "noise": noise, "rows": self._rows}
        if self._prints:
            self._layout.end(document, [f"noise: {noise['text']}", *closing(self._rows)])
        return document

    def _measured_noise(self, table: Sequence[environment.Rank]) -> Mapping[str, object]:
        """The share of the machine that other processes had (collective)."""
        foreign = self._noise.share(self._comm)
        crowded = environment.oversubscribed(table)
        binding = environment.binding(table)
        doubtful = " (above 5 %: repeat on a quiet machine)" if foreign > environment.FOREIGN_LIMIT else ""
        text = (
            f"other processes used {foreign:.0%} of the CPUs{doubtful}; "
            f"{f'OVERSUBSCRIBED, {crowded}' if crowded else 'a CPU for each rank'}; binding {binding}"
        )
        return {"foreign_cpu_share": foreign, "oversubscribed": crowded, "binding": binding, "text": text}


def header(plan: Plan, table: Sequence[environment.Rank], gpu_path: tuple[str, str]) -> list[str]:
    """The meaning of the figures."""
    hosts = environment.nodes(table)
    lines = [
        f"mpicomp {__version__} bench {plan.collective}: {_data(plan)}",
        f"{count(len(table), 'rank')} on {', '.join(hosts)}; {mpi.library()['name']}"
        + (f"; GPU arrays, {': '.join(gpu_path)}" if plan.device == "gpu" else ""),
        "time: median over rounds of the slowest rank's time, after a barrier; implementations take turns"
        + (f"; mean of {plan.steps_per_barrier} steps" if plan.steps_per_barrier > 1 else ""),
        "algbw, busbw: GB/s = 1e9 bytes/s; sent: bytes per rank and step (~ by formula, inside MPI's own call)",
        f"vs: speed relative to {plan.names[0]}",
    ]
    lines += ["in: the same in place, so that the result replaces the input"] * (len(plan.places) > 1)
    lines += _cut_sizes(plan, len(table))
    if plan.bounds:
        lines.append(f"bound: error-bounded all-reduce of fields, {plan.data}; auto runs the exact one if codes would "
                     "not be faster")
    if plan.schemes:
        lines.append("schemes: one step of a constant gradient with error memory, returning the sparse mean")
    if plan.collective == "schemes":
        lines.append("local: the same step on every rank alone, all at once: compressing and decompressing, no network")
    return lines


def _cut_sizes(plan: Plan, ranks: int) -> list[str]:
    """A line about the sizes that are not whole elements, and the sizes measured instead."""
    cut = [f"{show_size(nbytes)} is measured as {' or '.join(map(show_size, measured))}"
           for nbytes, measured in plan.cut_sizes(ranks).items()]  # fmt: skip
    some = ", ".join(cut[:MOST_CUT] + ["..."] * (len(cut) > MOST_CUT))
    return [f"sizes: whole elements{' for each rank' * plan.what.blocks}, at least one: {some}"] if cut else []


def _names(plan: Plan) -> list[str]:
    """The names of the implementations in the table."""
    marks = " (in place)" * (plan.places == ("in",)), " (local)" * (plan.collective == "schemes")
    names = [name + marks[name in plan.schemes] for name in plan.names]
    before = f"{'float32 ' * (len(plan.parts) > 1)}{f'cycle {plan.cycles} ' * (plan.cycles > 1)}"
    return [before + name for name in names]


def _data(plan: Plan) -> str:
    dtypes = ", ".join(part.dtype for part in plan.parts)
    data = f"{plan.op} of {dtypes}" if plan.what.reduces else dtypes
    data += f", {plan.cycles} cycles" if plan.cycles > 1 else ""
    if plan.what.rooted:
        data += f", root {plan.root}"
    places = {"in": ", in place", "out": ", out of place", "both": ", out of place and in place"}
    return data + (places[plan.place] if plan.what.in_place else "")


def show_merged(document: Document, layout: str) -> None:
    """Print merged launches."""
    rows = document["rows"]
    differ = differing(rows)
    two_places = {"out", "in"} <= {row["place"] for row in rows}
    names = tuple(dict.fromkeys(label(row, differ, place=not two_places) for row in rows))
    shown = LAYOUTS[layout](Look(names, any(row["baseline_us"] is not None for row in rows), differ, two_places))
    shown.begin([
        f"mpicomp {__version__} bench merge: {len(document['sources'])} launches of "
        f"{' '.join(dict.fromkeys(row['collective'] for row in rows))} on {ranks_of(rows)}",
        "time: median over launches of each launch's median; spread: slowest less fastest launch, over it",
        *document["differences"],
    ])  # fmt: skip
    shown.add(rows)
    noise = [f"noise of {name}: {one['text']}" for name, one in document["noise"].items()]
    shown.end(document, [*noise, *closing(rows)])
