"""``mpicomp schemes``: the registry of schemes, from the declarations of their parts."""

from __future__ import annotations

from typing import Any

import click

from .. import schemes as registry
from .console import Column, print_json, print_table

PARTS = [Column(title, left=True) for title in ("scheme", "memory", "selector", "codec", "exchange")]
OPTIONS = [Column(title, left=True) for title in ("option", "default", "range", "meaning")]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(registry.names()), metavar="[SCHEME]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def schemes(names: tuple[str, ...], as_json: bool) -> None:
    """List the compression schemes: the parts each is composed of, its options and its cost.

    A scheme is written name:option=value,option=value, for example scalecom:chunk=112,beta=0.1.
    """
    rows = [row for row in registry.table() if not names or row["name"] in names]
    if as_json:
        print_json({"format": "mpicomp-schemes", "version": 1, "schemes": rows})
        return
    print_table(PARTS, [[row[column.title] for column in [Column("name"), *PARTS[1:]]] for row in rows])
    click.echo("\nIn costs: p ranks, n elements, k of them sent, v and i bytes a value and an index.")
    for row in rows:
        click.echo(f"\n{row['name']}: {row['reference']}\n  bytes a rank sends: {row['wire']}")
        print_table(OPTIONS, [_option(option) for option in row["options"]])


def _option(option: dict[str, Any]) -> list[str]:
    default = "-" if option["default"] is None else str(option["default"])
    return [option["name"], default, option["range"], option["meaning"]]
