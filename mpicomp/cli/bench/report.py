"""How ``mpicomp bench`` reports: collects rows, hands them to a layout, adds what is said about the whole run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from ..._util import environment_variables
from ..._version import __version__
from ...bench import Plan, documents, environment
from ...bench.plan import show_size
from ...bench.rows import differing, label
from .. import config, guard
from ..console import Progress
from .layouts import LAYOUTS

MOST_CUT = 4  # sizes that a table's head tells of


def head(comm: Any, plan: Plan) -> dict[str, Any]:
    """What the document says beside the rows (collective)."""
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
        "mpi": guard.library(),
        "seed": plan.seed,
        "ranks": table,
        "environment": environment_variables.explaining(),
    }


def dry_run(comm: Any, plan: Plan) -> None:
    """What a run would measure, and what it would take."""
    if comm.rank != 0:
        return
    vectors = 3 * bool(plan.algorithms) + (7 + 2 * len(plan.schemes)) * bool(plan.schemes)
    click.echo(f"collective       {plan.collective}")
    click.echo(f"ranks            {comm.size}")
    click.echo(f"sizes            {', '.join(show_size(nbytes) for nbytes in plan.sizes)}")
    click.echo(f"implementations  {' '.join((*plan.algorithms, *plan.schemes))}")
    click.echo(f"memory a rank    about {show_size(vectors * max(plan.sizes))}")
    many = plan.cycles * len(plan.parts) * len(plan.sizes)
    click.echo(f"time             about {1.5 * many * plan.max_time:.0f} s, if single steps are short")


class Report:
    """Collects the rows of a run; rank 0 prints them in a layout."""

    def __init__(self, comm: Any, plan: Plan, layout: str, progress: Progress, before: Any = None) -> None:
        self._comm, self._plan, self._progress, self._before = comm, plan, progress, before
        differ = (*["dtype"] * (len(plan.parts) > 1), *["cycle"] * (plan.cycles > 1))
        self._layout = LAYOUTS[layout](_names(plan), before is not None, differ)
        self._prints = comm.rank == 0
        self._noise = environment.Noise()
        self._rows: list[dict[str, Any]] = []

    def begin(self) -> None:
        """The lines that say what is measured (collective)."""
        table = environment.ranks(self._comm)
        if self._prints:
            self._layout.begin(header(self._plan, table, self._comm.gpu_path))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        if self._before is not None:
            self._before.compare(rows)
        self._rows += rows
        if self._prints:
            self._layout.add(rows)
            sys.stdout.flush()

    def end(self, head: dict[str, Any]) -> dict[str, Any]:
        """What the layout says at the end, the noise among it; the whole document (collective)."""
        self._progress.clear()
        document = {**head, "noise": self._measured_noise(head["ranks"]), "rows": self._rows}
        if self._prints:
            self._layout.end(document, [f"noise: {document['noise']['text']}"])
        return document

    def _measured_noise(self, table: list[dict[str, Any]]) -> dict[str, Any]:
        """How far the machine was this job's alone (collective)."""
        foreign = self._noise.share(self._comm)
        crowded = environment.oversubscribed(table)
        binding = environment.binding(table)
        doubtful = " (above 5 %: repeat on a quiet machine)" if foreign > environment.FOREIGN_LIMIT else ""
        text = (
            f"other processes used {foreign:.0%} of the CPUs{doubtful}; "
            f"{f'OVERSUBSCRIBED, {crowded}' if crowded else 'a CPU for each rank'}; binding {binding}"
        )
        return {"foreign_cpu_share": foreign, "oversubscribed": crowded, "binding": binding, "text": text}


def header(plan: Plan, table: list[dict[str, Any]], gpu_path: tuple[str, str]) -> list[str]:
    """What the figures mean."""
    hosts = environment.nodes(table)
    lines = [
        f"mpicomp {__version__} bench {plan.collective}: {_data(plan)}",
        f"{len(table)} {'rank' if len(table) == 1 else 'ranks'} on {', '.join(hosts)}; {guard.library()['name']}"
        + (f"; GPU arrays, {': '.join(gpu_path)}" if plan.device == "gpu" else ""),
        "time: median over rounds of the slowest rank's time, after a barrier; implementations take turns"
        + (f"; mean of {plan.steps_a_round} steps" if plan.steps_a_round > 1 else ""),
        "algbw, busbw: GB/s = 1e9 bytes/s; sent: bytes a rank sends in a step (~ by formula, inside MPI's own call)",
        f"vs: times as fast as {(*plan.algorithms, *plan.schemes)[0]}",
    ]
    lines += _cut_sizes(plan, len(table))
    if plan.schemes:
        lines.append("schemes: one step of a constant gradient with error memory, returning the sparse mean")
    if plan.collective == "schemes":
        lines.append("local: the same step on every rank alone, all at once: compressing and decompressing, no network")
    return lines


def _cut_sizes(plan: Plan, ranks: int) -> list[str]:
    """What is measured where sizes are no whole elements."""
    cut = [f"{show_size(nbytes)} is measured as {' or '.join(map(show_size, measured))}"
           for nbytes, measured in plan.cut_sizes(ranks).items()]  # fmt: skip
    some = ", ".join(cut[:MOST_CUT] + ["..."] * (len(cut) > MOST_CUT))
    return [f"sizes: whole elements{' for each rank' * plan.what.blocks}, at least one: {some}"] if cut else []


def _names(plan: Plan) -> list[str]:
    """What implementations are called in the table."""
    dense = [f"{name} (in place)" if "in" in plan.places else name for name in plan.algorithms]
    names = dense + [f"{name} (local)" if plan.collective == "schemes" else name for name in plan.schemes]
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


def show_merged(document: dict[str, Any], layout: str) -> None:
    """Print merged launches."""
    rows = document["rows"]
    differ = differing(rows)
    names = tuple(dict.fromkeys(label(row, differ) for row in rows))
    shown = LAYOUTS[layout](names, any(row["baseline_us"] is not None for row in rows), differ)
    ranks = " ".join(str(n) for n in dict.fromkeys(row["n_ranks"] for row in rows))
    shown.begin([
        f"mpicomp {__version__} bench merge: {len(document['sources'])} launches of "
        f"{' '.join(dict.fromkeys(row['collective'] for row in rows))} on {ranks} ranks",
        "time: median over launches of each launch's median; spread: slowest less fastest launch, over it",
        *document["differences"],
    ])  # fmt: skip
    shown.add(rows)
    shown.end(document, [f"noise of {name}: {noise['text']}" for name, noise in document["noise"].items()])
