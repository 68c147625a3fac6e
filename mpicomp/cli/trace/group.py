"""The group ``mpicomp trace`` and its analyses, which are imported when one of them is used."""

from __future__ import annotations

from importlib import import_module

import click

ANALYSES = {
    "steps": "Duration of the steps, their course, and their phases.",
    "breakdown": "Share of each phase, per rank and overall.",
    "overlap": "Communication hidden under computation, and exposed.",
    "collectives": "Count, time and bandwidth by operation, algorithm and size.",
    "stragglers": "Ranks that arrive late, how late, how often.",
    "spikes": "Steps far above the median, and their causes.",
    "codec": "Benefit of compression: bytes saved, time spent.",
    "measures": "Density, memory norm, errors and loss over the steps.",
    "bandwidth": "Bus bandwidth by algorithm and size, with a model.",
    "heatmap": "Ranks x steps, as shades or a picture.",
    "matrix": "Bytes between ranks or nodes.",
    "timeline": "One step, rank by rank, as text or a picture.",
    "efficiency": "POP metrics: load balance, communication, transfer.",
    "diff": "Two traces, phase by phase, with the noise.",
    "hang": "The call that each rank of an unfinished run is in.",
}
ALIASES = {"scheme": "codec"}


class TraceGroup(click.Group):
    """A group that lists the analyses without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *ANALYSES})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name in ANALYSES:
            return import_module("mpicomp.cli.trace.analyses").COMMANDS[name]
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(60) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**own, **ANALYSES}.items()))
