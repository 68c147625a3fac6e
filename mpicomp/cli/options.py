"""Building blocks of the commands: options by section, lists of names, suggestions for misspelt words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import click
from click.shell_completion import CompletionItem

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument

Function = Callable[..., Any]  # the body of a command: click calls it with the values of the options
Decorator = Callable[[Function], Function]
HELP = {"help_option_names": ["-h", "--help"], "show_default": True}  # of every group and command


class SectionOption(click.Option):
    """An option that knows the title of its section in ``--help``, if it has one."""

    def __init__(self, declarations: Sequence[str], section: str | None = None, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.section = section


def option(*names: str, **attributes: Any) -> Callable[..., Decorator]:
    """An option for `section`, or called for none; the arguments are those of ``click.option``."""
    return partial(click.option, *names, cls=SectionOption, **attributes)


def section(title: str, *options: Callable[..., Decorator]) -> Decorator:
    """Decorator that gives a command ``options`` under one title in ``--help``."""
    return all_of(*(one(section=title) for one in options))


def all_of(*decorators: Decorator) -> Decorator:
    """Several options, arguments or sections as one decorator, in the order of ``--help``."""
    return lambda body: reduce(lambda made, decorator: decorator(made), reversed(decorators), body)


# Options of several commands: a short letter has one meaning in all of them.
quiet = option("-q", "--quiet", is_flag=True, help="Print no progress on stderr.")
as_json = option("--json", "as_json", is_flag=True, help="Print one JSON document.")
timeout = option("-T", "--timeout", type=float, metavar="SECONDS",
                 help="End the job with exit code 124 if one step takes longer.  [default: 0, no limit]")


class OutputPath(click.Path):
    """The path of a file or folder that the command writes."""

    def __init__(self) -> None:
        super().__init__(readable=False)


OUTPUT = OutputPath()


class Command(click.Command):
    """A command whose ``--help`` lists options by section, those without a section last.

    No option may be empty: the text of a shell variable that is not set would count as no option. Two outputs must not
    be the same file: one would destroy the other.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        outputs: dict[str, str] = {}
        for parameter in self.params:
            value, name = ctx.params.get(parameter.name or ""), max(parameter.opts, key=len)
            if value is None or not isinstance(parameter, click.Option) or ctx.resilient_parsing:
                continue
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.strip(" ,"):
                    advice = "give one" if parameter.required else f"give one, or leave out {name}"
                    raise InvalidArgument(f"{name} must have a value, got {text!r}: {advice}")
            if not isinstance(parameter.type, OutputPath):
                continue
            other = outputs.setdefault(os.path.realpath(value), name)
            if other != name:
                raise InvalidArgument(f"{other} and {name} must be different paths, got {value} for both: "
                                      "give another path for one of them")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                title = parameter.section if isinstance(parameter, SectionOption) else None
                (others if title is None else sections.setdefault(title, [])).append(record)
        for title, records in {**sections, "Options": others}.items():
            with formatter.section(title):
                formatter.write_dl(records)


class OfflineCommand(Command):
    """A command that runs without MPI in a group whose other commands need it."""


class Group(click.Group):
    """A group that suggests the nearest command for an unknown one."""

    command_class = Command

    def resolve_command(self, ctx: click.Context, args: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            raise click.UsageError(f"No such command {args[0]!r}{did_you_mean(args[0], known)}: "
                                   f"choose one of {', '.join(known)}.", ctx)
        return super().resolve_command(ctx, args)


class Choice(click.Choice):  # type: ignore[type-arg]  # click 8.1 cannot be subscripted
    """One of some words, with a suggestion for an unknown one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            suggestion = did_you_mean(str(value), map(str, self.choices))
            raise click.BadParameter(f"{error.message}{suggestion}", ctx, param) from None


class CommaList(click.ParamType):  # type: ignore[type-arg]  # as above
    """A comma-separated list, completed name by name."""

    name = "list"

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in self._names() if name.startswith(last)]


def scheme_names() -> list[str]:
    """The names of all schemes, for completion."""
    from ..schemes.registry import names  # imports NumPy: not for --help

    return names()


def as_typed(text: str, command: click.Command) -> str:
    """An error about a setting, such as ``max_time must be ...``, with the spelling of its option."""
    typed = {option.name: spelling for option in command.params for spelling in option.opts
             if option.name and "_" in option.name and spelling == f"--{option.name.replace('_', '-')}"}  # fmt: skip
    return re.sub(r"\b(\w+)(?= must )", lambda found: typed.get(found[1], found[1]), text)
