"""``mpicomp schemes``: describe schemes from the declarations of their parts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import click
from click.shell_completion import CompletionItem

from .. import schemes as registry
from .console import Column, print_json, print_table, say, width_of
from .options import Command, as_json

CELL = 44  # characters of a range or a meaning in a line of a file
Row = Mapping[str, Any]  # of `schemes.table`, or one of its options
SIDE, RANKS = 1024, 8  # of the example


class SchemeName(click.ParamType):  # type: ignore[type-arg]  # click 8.1 cannot be subscripted
    """A scheme with or without options; completes names."""

    name = "scheme"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in registry.names() if name.startswith(incomplete)]


@click.command(cls=Command)
@click.argument("texts", nargs=-1, type=SchemeName(), metavar="[SCHEME]...")
@as_json()
def schemes(texts: tuple[str, ...], as_json: bool) -> None:
    """List the compression schemes: the parts each is composed of, its cost, options and reference.

    With arguments, describe these schemes with the values of their options, their bytes and restrictions. A scheme is
    written name:option=value,option=value, for example scalecom:chunk=112,beta=0.1; each of its parts can be replaced,
    for example topk:codec=levels.
    """
    rows = [_described(registry.Scheme.parse(text)) for text in texts] or registry.table()
    if as_json:
        print_json({"format": "mpicomp-schemes", "version": 1, "schemes": rows})
        return
    common = registry.common_options()
    defaults = {option["name"]: option["default"] for option in common}
    for row in rows:
        own = [option for option in row["options"] if defaults.get(option["name"], ()) != _value(option)]
        _print_scheme(row, own)
        if texts and own:
            _print_options("value", own)
            click.echo()
    say("Bytes per rank: p ranks, n elements, k of them sent, v and i bytes per value and index.")
    if texts:
        click.echo("\nOptions of every scheme")
        _print_options("default", common)
    else:
        say(f"Every scheme also takes: {', '.join(sorted(defaults))}; see mpicomp schemes NAME.")


def _described(scheme: registry.Scheme) -> Row:
    """The row of a scheme, with the bytes of an example by simulation, and the restrictions of its parts."""
    restrictions = [f"{kind} {part.name}: {text}" for kind, part in scheme.part_classes.items()
                    if (text := _restrictions(part))]  # fmt: skip
    return {**scheme.describe(), "example": _example(scheme), "restrictions": [*restrictions, *scheme.warning_texts()]}


def _example(scheme: registry.Scheme) -> str:
    from ..errors import InvalidArgument
    from ..simulate import Place, program_of, simulated
    from ..simulate.models import from_document

    model = from_document({"name": "a matrix", "layers": [{"name": "weight", "shape": [SIDE, SIDE]}]}, "a matrix")
    try:
        first = program_of(str(simulated(scheme)), model, Place(0, RANKS, 1))
    except InvalidArgument as error:  # a part of the user's own, or a choice by the clock
        return f"not known: {error}"
    nbytes = sum(one.share * float(one.bytes_sent.max()) for one in (first, *first.mixed))
    return f"{nbytes:,.0f} bytes per step for a {SIDE} x {SIDE} float32 matrix (simulated, busiest of {RANKS} ranks)"


def _restrictions(part: type) -> str:
    """The paragraph of a part's docstring; empty if there are none."""
    found = re.search(r"Restrictions: (?!none)(.*?)(?=\n *Reference:|\n\n|\Z)", inspect.getdoc(part) or "", re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _print_scheme(row: Row, own: Iterable[Row]) -> None:
    """Print the facts of a scheme and an empty line."""
    parts = [row[kind] for kind in ("memory", "selector", "codec", "exchange")]
    schedule = "" if row["schedule"] == "warm-up" else f", schedule {row['schedule']}"
    click.echo(f"{click.style(row['name'], bold=True)}  {' + '.join(parts)}{schedule}")
    facts = [("sends", row["wire"]), ("example", row.get("example")),
             ("under Adam", _proposal(row.get("rate_factor", 1.0))),
             ("options", " ".join(_assignment(option) for option in own) or "-"), ("reference", row["reference"]),
             *(("restriction", text) for text in row.get("restrictions", ()))]  # fmt: skip
    for name, text in facts:
        if text is not None:
            say(text, f"    {name:<12}")
    click.echo()


def _proposal(factor: float) -> str | None:
    """The learning rate proposed for Adam; None for the usual one."""
    return None if factor == 1.0 else f"memory=adam-update with plain SGD, or {factor:.3g} times the learning rate"


def _print_options(title: str, options: Iterable[Row]) -> None:
    """Print a table; without a terminal to fold them, long cells continue below."""
    rows = [_cells(option) for option in options]
    if width_of(sys.stdout) is None:
        rows = [line for row in rows for line in _lines(row)]
    print_table([Column(one, left=True) for one in ("option", title, "range", "meaning")], rows)


def _lines(cells: list[str]) -> list[list[str]]:
    """A row as several, long cells cut between words."""
    parts = [wrap(cell, CELL, break_on_hyphens=False) for cell in cells]
    return [list(line) for line in zip_longest(*parts, fillvalue="")]


def _value(option: Row) -> object:
    """The value in effect."""
    return option.get("value", option["default"])


def _assignment(option: Row) -> str:
    return option["name"] if _value(option) is None else f"{option['name']}={_value(option)}"


def _cells(option: Row) -> list[str]:
    value = _value(option)
    return [option["name"], "-" if value is None else str(value), option["range"], option["meaning"]]
