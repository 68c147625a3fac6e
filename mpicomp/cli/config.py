"""Configuration files: TOML, one table a command, that set defaults; what is given on the command line wins."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..errors import InvalidArgument, MissingExtra, MpicompError
from .commands import COMMANDS

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "MPICOMP_CONFIG"
_FOUND = "mpicomp.config"  # in click's meta: (path, tables)


def config_option(callback: Callable[[click.Context, str], None]) -> Callable[[Command], Command]:
    """The option ``--config``; ``callback(ctx, path)`` is called before the other options are looked at."""

    def given(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
        if path is not None and not ctx.resilient_parsing:  # completion must not fail on a file
            callback(ctx, path)
        return path

    return click.option("--config", type=click.Path(), metavar="FILE", is_eager=True, expose_value=False,
                        callback=given, envvar=VARIABLE,
                        help=f"Defaults from this TOML file, one table a command. [env: {VARIABLE}]")  # fmt: skip


def for_commands(ctx: click.Context, path: str) -> None:
    """``mpicomp --config FILE COMMAND``: keep the tables until the command is known."""
    ctx.meta[_FOUND] = (path, read(path))


def for_this(name: str) -> Callable[[click.Context, str], None]:
    """``mpicomp NAME --config FILE``: the table is this command's own."""

    def apply(ctx: click.Context, path: str) -> None:
        tables = read(path)
        ctx.meta[_FOUND] = (path, tables)
        ctx.default_map = defaults(ctx.command, tables.get(name, {}), f"[{name}] of {path}")

    return apply


def apply(ctx: click.Context, name: str, command: click.Command) -> None:
    """Let the table of command ``name``, if there is one, be the defaults of its options."""
    path, tables = ctx.meta.get(_FOUND, (None, {}))
    if name in tables:
        ctx.default_map = {**(ctx.default_map or {}), name: defaults(command, tables[name], f"[{name}] of {path}")}


def used(ctx: click.Context | None) -> str | None:
    """The configuration file of the running command."""
    return ctx.meta.get(_FOUND, (None, None))[0] if ctx else None


def record(ctx: click.Context) -> None:
    """Add the options that a file set to ``sys.argv``: that is the command line which results and traces keep."""
    for option in ctx.command.params:
        if ctx.get_parameter_source(option.name) is not ParameterSource.DEFAULT_MAP:
            continue
        value = ctx.params[option.name]
        if isinstance(option, click.Argument):
            sys.argv.append(str(value))
        elif isinstance(value, bool):
            sys.argv += option.opts[-1:] if value else option.secondary_opts[:1]
        else:
            for one in value if option.multiple else (value,):
                sys.argv += [max(option.opts, key=len), str(one)]


def read(path: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises
    ------
    MpicompError
        The file cannot be read, is no TOML, has keys outside a table, or a table of no command.
    """
    try:
        tables: dict[str, Any] = toml().loads(Path(path).read_text())
    except OSError as error:
        raise MpicompError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the configuration {path} is no TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidArgument(f"{name!r} in {path} is of no command: put it under [bench], [train.logreg], ...")
        if name not in COMMANDS:
            raise InvalidArgument(f"[{name}] in {path} is of no command: expected one of {', '.join(COMMANDS)}")
    return tables


def toml() -> Any:
    for name in ("tomllib", "tomli"):  # of Python 3.11 on; of the index for 3.10
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise MissingExtra("TOML files need Python 3.11, or: pip install 'mpicomp[config]'")


def defaults(command: click.Command, table: dict[str, Any], where: str) -> dict[str, Any]:
    """``table`` as click wants it: parameter names, lists where an option may be repeated.

    Raises InvalidArgument for what is no option of the command.
    """
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where} must be a table of options, got {table!r}")
    command = getattr(command, "default_command", command)
    if isinstance(command, click.Group):
        for name in table:
            if name not in command.commands:
                raise InvalidArgument(f"{where} has {name!r}, expected one of {', '.join(command.commands)}")
        return {name: defaults(command.commands[name], one, f"{name} in {where}") for name, one in table.items()}
    known = {spelling: option for option in command.params for spelling in _spellings(option)}
    found = {}
    for name, value in table.items():
        option = known.get(name.replace("_", "-"))
        if option is None:
            near = difflib.get_close_matches(name.replace("_", "-"), known, 1)
            raise InvalidArgument(f"{where} has no option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        if not all(isinstance(one, (str, int, float)) for one in (value if _repeats(option, value) else [value])):
            raise InvalidArgument(f"{where}: {name} must be a text, a number or true or false, got {value!r}")
        found[option.name] = _as_list(value) if option.multiple else value
    return found


def _spellings(option: click.Parameter) -> set[str]:
    names = [name.lstrip("-") for name in (*option.opts, *option.secondary_opts, option.name or "")]
    return {name.replace("_", "-") for name in names if len(name) > 1 and not option.is_eager}


def _repeats(option: click.Parameter, value: Any) -> bool:
    """Whether ``value`` is a list for an option that may be given several times."""
    return option.multiple and isinstance(value, list)


def _as_list(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
