"""Processes of this Python that find the same modules as this process."""

from __future__ import annotations

import sys


def python(code: str) -> list[str]:
    """The command line that runs ``code``.

    ``-c`` and ``-m`` alone look into the working folder first, where a clone's ``mpicomp`` may hide the installed one.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
