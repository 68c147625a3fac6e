"""Options that several commands take, as one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Decorator = Callable[[Any], Any]


def all_of(*options: Decorator) -> Decorator:
    """Several options (or arguments) as one decorator, in the order of --help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
