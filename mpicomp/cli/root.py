"""The root of the command line: imports a command's module when the command is used."""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from ..errors import InvalidArgument
from . import config
from .commands import COMMANDS
from .guard import Guard
from .options import HELP, Group, OfflineCommand, as_typed


class LazyGroup(Group):
    """A group that knows its commands' names and summaries, and imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        guard = ctx.find_object(Guard)
        if guard is not None:
            guard.offline, guard.allow_singleton = not entry.mpi, entry.singleton
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        config.apply(ctx, name, command)
        if entry.mpi and guard is not None:
            _start_mpi_first(command, guard)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(n, help=e.summary) for n, e in COMMANDS.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


def _start_mpi_first(command: click.Command, guard: Guard) -> None:
    """Make ``command`` (every leaf, if it is a group) start MPI once click has parsed its arguments.

    Not earlier: ``mpicomp bench --help`` and a misspelt option must not cost an MPI start. A leaf of the class
    `OfflineCommand` runs without MPI.
    """
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _start_mpi_first(child, guard)
        return
    body = command.callback
    if body is None or isinstance(command, OfflineCommand):
        return

    @wraps(body)
    def started(**options: object) -> object:
        context = click.get_current_context()
        config.record(context)
        guard.start(sys.argv[1:])
        try:
            return body(**options)
        except InvalidArgument as error:
            error.args = (as_typed(str(error), context.command),)
            raise

    command.callback = started


def _show_version(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    from . import version  # not for the other commands

    version.show(ctx, option, asked)


@click.group(cls=LazyGroup, context_settings=HELP)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Print the versions of mpicomp, Python's packages, MPI, the extension and CUDA.")
@config.config_option(config.for_commands)
def root() -> None:
    """All-reduce over MPI, dense and compressed: measure it, train with it, explain its traces.

    Start the commands that use MPI under your launcher, for example

    \b
    mpirun -n 4 mpicomp bench
    """
