"""The command ``mpicomp``. Help, completion and the offline commands start no MPI."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Run one command and end this process, and with it the job: the entry point of the console script."""
    _fill_standard_streams()
    from .guard import run
    from .root import root

    sys.exit(run(root, sys.argv[1:] if args is None else args))


def _fill_standard_streams() -> None:
    """Open /dev/null for every stream that the caller closed (as in ``>&-``), in the order of their numbers.

    Otherwise printing fails, and what a library prints is written to the next file that is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (stays open)
