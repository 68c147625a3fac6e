"""Options of data that is made and not read: ``synthetic:train=2000,test=500,seed=1``."""

from __future__ import annotations

from mpicomp.errors import InvalidArgument

_DIGITS = 18  # of an option


def options(source: str, defaults: dict[str, int], most: int = 1 << 24) -> dict[str, int]:
    """The whole numbers behind ``synthetic:``, 1 to ``most`` (``seed``: from 0, any).

    Raises
    ------
    InvalidArgument
        Naming the item that is none of ``defaults``, repeated or out of range, and what could stand there.
    """
    given: dict[str, int] = {}
    for item in filter(None, source.partition(":")[2].split(",")):
        name, _, value = item.partition("=")
        fine = name in defaults and name not in given and value.isdecimal() and len(value) <= _DIGITS
        if not fine or (name != "seed" and not 1 <= int(value) <= most):
            pattern = ",".join(f"{name}={default}" for name, default in defaults.items())
            raise InvalidArgument(f"expected synthetic:{pattern} (whole numbers, at most {most}, each once), "
                                  f"got {item!r}")
        given[name] = int(value)
    return {**defaults, **given}
