"""``mpicomp schemes``: the registry of schemes, from the declarations of their parts."""

from __future__ import annotations

import sys
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import click

from .. import schemes as registry
from .console import Column, print_json, print_table, say, width_of

OPTIONS = [Column(title, left=True) for title in ("option", "default", "range", "meaning")]
CELL = 44  # characters of a range or a meaning in a line of a file


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(registry.names()), metavar="[SCHEME]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def schemes(names: tuple[str, ...], as_json: bool) -> None:
    """List the compression schemes: the parts each is composed of, its cost, options and reference.

    With names, the range and meaning of every option. A scheme is written name:option=value,option=value, for example
    scalecom:chunk=112,beta=0.1; each of its parts can be replaced, for example topk:codec=sign.
    """
    rows = [row for row in registry.table() if not names or row["name"] in names]
    if as_json:
        print_json({"format": "mpicomp-schemes", "version": 1, "schemes": rows})
        return
    common = {option["name"]: option["default"] for option in registry.common_options()}
    for row in rows:
        own = [option for option in row["options"] if common.get(option["name"], ()) != option["default"]]
        _print_scheme(row, own)
        if names and own:
            _print_options(own)
            click.echo()
    say("A rank sends so many bytes: p ranks, n elements, k of them sent, v and i bytes a value and an index.")
    if names:
        click.echo("\nOptions of every scheme")
        _print_options(registry.common_options())
    else:
        say(f"Every scheme also takes: {', '.join(sorted(common))}; see mpicomp schemes NAME.")


def _print_scheme(row: dict[str, Any], own: list[dict[str, Any]]) -> None:
    """Four facts and an empty line."""
    parts = [row[kind] for kind in ("memory", "selector", "codec", "exchange")]
    schedule = "" if row["schedule"] == "warm-up" else f", schedule {row['schedule']}"
    click.echo(f"{click.style(row['name'], bold=True)}  {' + '.join(parts)}{schedule}")
    _print_fact("sends", row["wire"])
    _print_fact("options", " ".join(_assignment(option) for option in own) or "-")
    _print_fact("reference", row["reference"])
    click.echo()


def _print_fact(name: str, text: str) -> None:
    say(text, f"    {name:<10}")


def _print_options(options: list[dict[str, Any]]) -> None:
    """A table; where no terminal is there to fold it, long cells go on below."""
    rows = [_cells(option) for option in options]
    if width_of(sys.stdout) is None:
        rows = [line for row in rows for line in _lines(row)]
    print_table(OPTIONS, rows)


def _lines(cells: list[str]) -> list[list[str]]:
    """A row as several, long cells cut between words."""
    parts = [wrap(cell, CELL, break_on_hyphens=False) for cell in cells]
    return [list(line) for line in zip_longest(*parts, fillvalue="")]


def _assignment(option: dict[str, Any]) -> str:
    return option["name"] if option["default"] is None else f"{option['name']}={option['default']}"


def _cells(option: dict[str, Any]) -> list[str]:
    default = "-" if option["default"] is None else str(option["default"])
    return [option["name"], default, option["range"], option["meaning"]]
