"""Options that several commands take, as one decorator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Any], Any]


def all_of(*options: Decorator) -> Decorator:
    """Several options (or arguments) as one decorator, in the order of --help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def as_typed(text: str, command: click.Command) -> str:
    """An error about a setting, such as ``max_time must be ...``, in the word of the option that gave it."""
    typed = {option.name: spelling for option in command.params for spelling in option.opts
             if option.name and "_" in option.name and spelling == f"--{option.name.replace('_', '-')}"}  # fmt: skip
    return re.sub(r"\b(\w+)(?= must )", lambda found: typed.get(found[1], found[1]), text)
