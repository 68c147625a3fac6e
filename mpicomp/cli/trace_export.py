"""``mpicomp trace export``: a recording for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from .console import print_json
from .trace_console import errors

# What a format's file is called by default. Written down here so that --help imports no HDF5.
SUFFIXES = {"perfetto": ".perfetto.json.gz", "chrome": ".chrome.json", "csv": ".csv", "parquet": ".parquet",
            "jsonl": ".jsonl"}  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-f", "--format", "form", required=True, type=click.Choice(list(SUFFIXES)), help="What to write.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default FILE with the format's ending.")
@click.option("--ranks", help="Only these ranks, as 0-3,8.")
@click.option("--steps", help="Only these steps, first and last, as 10:12.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: path, format and number of events.")
def export(file: Path, form: str, output: Path | None, ranks: str, steps: str, force: bool, as_json: bool) -> None:
    """Write the events for other tools.

    \b
    perfetto  gzipped JSON for https://ui.perfetto.dev: a process a rank, counters of bytes
    chrome    the same as plain JSON, for chrome://tracing
    csv, jsonl, parquet   one row an event; t_reference is t_start on the clock of rank 0
    """
    chosen = ranks_in(ranks) if ranks else None
    span = _steps(steps) if steps else None
    output = output or file.with_name(file.name.removesuffix(".d").removesuffix(".h5") + SUFFIXES[form])
    with errors():
        from ..trace import export

        written = export(file, output, form, ranks=chosen, steps=span, force=force)
    if as_json:
        print_json({"path": str(output), "format": form, "n_events": written})
    else:
        click.echo(f"{output}: {written} events")


def ranks_in(text: str) -> list[int]:
    """``0-2,5`` as [0, 1, 2, 5]."""
    try:
        runs = [[int(end) for end in run.split("-", 1)] for run in text.split(",")]
    except ValueError:
        runs = []
    if not runs or any(run[0] > run[-1] or run[-1] >= 1 << 24 for run in runs):
        raise click.BadParameter(f"expected ranks as 0-3,8, got {text!r}", param_hint="--ranks")
    return [rank for run in runs for rank in range(run[0], run[-1] + 1)]


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        span = int(first), int(last or first)
    except ValueError:
        span = (1, 0)
    if span[0] > span[1]:
        raise click.BadParameter(f"expected steps as 10:12 or 10, got {text!r}", param_hint="--steps")
    return span
