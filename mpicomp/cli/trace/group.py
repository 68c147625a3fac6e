"""The group ``mpicomp trace`` and its analyses, which are imported when one of them is used."""

from __future__ import annotations

from importlib import import_module

import click

from ...errors import MpicompError
from ..options import Command
from ..outcome import message
from .summaries import SUMMARIES

ALIASES = {"scheme": "codec"}


class TraceGroup(click.Group):
    """A group that lists the analyses without importing them.

    Errors that the user can correct are one line, without a traceback.
    """

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *SUMMARIES})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name in SUMMARIES:
            return import_module("mpicomp.cli.trace.analyses").COMMANDS[name]
        return super().get_command(ctx, name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # no error: the reader of the output has seen enough
            raise
        except (MpicompError, OSError) as error:
            raise click.ClickException(message(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(60) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**own, **SUMMARIES}.items()))
