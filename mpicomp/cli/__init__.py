"""The command ``mpicomp``. Help, completion and the offline commands start no MPI."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script: run one command and end this process, and with it the job."""
    _fill_standard_streams()
    from .guard import run
    from .root import root

    sys.exit(run(root, sys.argv[1:] if args is None else args))


def _fill_standard_streams() -> None:
    """Let what the caller closed (as in ``>&-``) be /dev/null; opened in this order each gets its own number back.

    Otherwise printing is an error, and what a library prints goes into the next file that is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for good)
