"""The command ``mpicomp``. Help, completion and the offline commands start no MPI."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script: run one command and end this process, and with it the job."""
    from .guard import run
    from .root import root

    sys.exit(run(root, sys.argv[1:] if args is None else args))
