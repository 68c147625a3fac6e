"""Command line of a child process with this process's ``sys.path``."""

from __future__ import annotations

import sys


def python(code: str) -> list[str]:
    """The command line that runs ``code``.

    ``-c`` and ``-m`` alone search the working folder first, so that a clone's ``mpicomp`` could hide the installed one.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
