"""Command ``mpicomp trace export``: a recording for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from ..._util.plurals import count
from ..console import print_json
from ..options import Command
from .console import as_json, chosen_ranks, shown_progress, trace_file

# Default suffixes of the formats, listed here so that --help imports no HDF5.
SUFFIXES = {"perfetto": ".perfetto.json.gz", "chrome": ".chrome.json", "csv": ".csv", "parquet": ".parquet",
            "jsonl": ".jsonl"}  # fmt: skip


def _chosen_steps(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """``10:12`` as (10, 12)."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        span = int(first), int(last if colon else first)
    except ValueError:
        span = (1, 0)
    if span[0] > span[1]:
        raise click.BadParameter(f"expected steps as 10:12 or 10, got {text!r}")
    return span


@click.command(cls=Command)
@trace_file
@click.option("--format", "form", required=True, type=click.Choice(list(SUFFIXES)), help="Output format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default FILE with the format's ending.")
@click.option("--ranks", callback=chosen_ranks, metavar="0-3,8", help="Only these ranks.")
@click.option("--steps", callback=_chosen_steps, metavar="10:12", help="Only these steps, first and last.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@as_json
def export(file: Path, form: str, output: Path | None, ranks: list[int] | None, steps: tuple[int, int] | None,
           force: bool, as_json: bool) -> None:  # fmt: skip
    """Write the events for other tools.

    \b
    perfetto  gzipped JSON for https://ui.perfetto.dev: a process per rank,
              counters of bytes
    chrome    the same as plain JSON, for chrome://tracing
    csv, jsonl, parquet
              one row per event; t_reference is t_start on the clock of rank 0
    """
    output = output or file.with_name(file.name.removesuffix(".d").removesuffix(".h5") + SUFFIXES[form])
    with shown_progress() as progress:
        from ...trace import export

        written = export(file, output, form, ranks=ranks, steps=steps, force=force, progress=progress)
    if as_json:
        print_json({"path": str(output), "format": form, "n_events": written})
    else:
        click.echo(f"{output}: {count(written, 'event')}")
