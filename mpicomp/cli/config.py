"""Configuration files: TOML with one table per command, whose values replace the defaults of options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument, MissingExtra, MpicompError
from .commands import COMMANDS
from .options import Decorator

Table = Mapping[str, object]

VARIABLE = "MPICOMP_CONFIG"
_FOUND = "mpicomp.config"  # key of the `Found` file in click's meta


class Found(NamedTuple):
    """The configuration file of the running command."""

    path: str | None = None
    tables: Mapping[str, Table] = {}


def config_option(callback: Callable[[click.Context, str], None]) -> Decorator:
    """The option ``--config``; ``callback(ctx, path)`` is called before click parses the other options."""

    def given(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
        if path is not None and not ctx.resilient_parsing:  # completion must not fail on a file
            callback(ctx, path)
        return path

    return click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, expose_value=False,
                        callback=given, envvar=VARIABLE,
                        help=f"TOML file of defaults, one table per command. [env: {VARIABLE}]")  # fmt: skip


def for_commands(ctx: click.Context, path: str) -> None:
    """``mpicomp --config FILE COMMAND``: keep the tables until the command is known."""
    ctx.meta[_FOUND] = Found(path, read(path))


def for_this(name: str) -> Callable[[click.Context, str], None]:
    """``mpicomp NAME --config FILE``: use the table of this command."""

    def use(ctx: click.Context, path: str) -> None:
        ctx.meta[_FOUND] = found = Found(path, read(path))
        ctx.default_map = defaults(ctx.command, found.tables.get(name, {}), f"[{name}] of {path}")

    return use


def apply(ctx: click.Context, name: str, command: click.Command) -> None:
    """Let the table of command ``name``, if there is one, be the defaults of its options."""
    path, tables = ctx.meta.get(_FOUND, Found())
    if name in tables:
        ctx.default_map = {**(ctx.default_map or {}), name: defaults(command, tables[name], f"[{name}] of {path}")}


def used(ctx: click.Context | None) -> str | None:
    """The path of the running command's configuration file."""
    found: Found = ctx.meta.get(_FOUND, Found()) if ctx else Found()
    return found.path


def record(ctx: click.Context) -> None:
    """Add the options that a file set to ``sys.argv``: results and traces keep that as their command line."""
    for option in ctx.command.params:
        if ctx.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT_MAP:
            continue
        value = ctx.params[option.name or ""]
        if isinstance(option, click.Argument):
            sys.argv.append(str(value))
        elif isinstance(value, bool):
            sys.argv += option.opts[-1:] if value else option.secondary_opts[:1]
        else:
            for one in value if _multiple(option) else (value,):
                sys.argv += [max(option.opts, key=len), str(one)]


def read(path: str) -> dict[str, Table]:
    """The tables of a TOML file.

    Raises
    ------
    MpicompError
        The file cannot be read, is not TOML, has keys outside a table, or a table of an unknown command.
    """
    try:
        tables = parse_toml(Path(path).read_text())
    except OSError as error:
        raise MpicompError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the configuration {path} is not TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidArgument(f"{name!r} in {path} belongs to no command: put it under [bench], [train.logreg], "
                                  "...")  # fmt: skip
        if name not in COMMANDS:
            raise InvalidArgument(f"unknown table [{name}] in {path}{did_you_mean(name, COMMANDS)}; the tables are: "
                                  f"{', '.join(COMMANDS)}")  # fmt: skip
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def parse_toml(text: str) -> dict[str, object]:
    """The document in ``text``, by the standard library from Python 3.11 on, else by tomli."""
    for name in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            document: dict[str, object] = import_module(name).loads(text)
            return document
    raise MissingExtra("TOML files need Python 3.11, or: pip install 'mpicomp[config]'")


def defaults(command: click.Command, table: object, where: str) -> dict[str, object]:
    """``table`` in the form of click's ``default_map``: parameter names, lists for options that may be repeated.

    Raises InvalidArgument for an unknown option or subcommand.
    """
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where} must be a table of options, got {table!r}")
    command = getattr(command, "default_command", command)
    if isinstance(command, click.Group):
        for name in table:
            if name not in command.commands:
                raise InvalidArgument(f"{where} has {name!r}{did_you_mean(name, command.commands)}, expected one of "
                                      f"{', '.join(command.commands)}")  # fmt: skip
        return {name: defaults(command.commands[name], one, f"{name} in {where}") for name, one in table.items()}
    known = {spelling: option for option in command.params for spelling in _spellings(option)}
    found: dict[str, object] = {}
    for name, value in table.items():
        option = known.get(name.replace("_", "-"))
        if option is None:
            raise InvalidArgument(f"{where} has no option {name!r}{did_you_mean(name.replace('_', '-'), known)}")
        values = value if _multiple(option) and isinstance(value, list) else [value]
        if not all(isinstance(one, (str, int, float)) for one in values):
            raise InvalidArgument(f"{where}: {name} must be a text, a number or true or false, got {value!r}")
        found[option.name or ""] = [str(one) for one in values] if _multiple(option) else _typed(option, name, value)
    return found


def _typed(option: click.Parameter, name: str, value: object) -> object:
    """``value`` as text, which click parses as on the command line; true or false of a switch, ``name``, as a bool."""
    if f"--{name.replace('_', '-')}" in option.secondary_opts:  # its off side
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be true or false, got {value!r}")
        return not value
    switch = isinstance(getattr(option, "flag_value", None), int)
    return value if switch and isinstance(value, bool) else str(value)


def _spellings(option: click.Parameter) -> set[str]:
    names = [name.lstrip("-") for name in (*option.opts, *option.secondary_opts, option.name or "")]
    return {name.replace("_", "-") for name in names if len(name) > 1 and not option.is_eager}


def _multiple(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.multiple
