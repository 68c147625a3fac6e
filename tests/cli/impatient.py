"""The command ``mpicomp`` with a progress line every millisecond, not 30 s: ``python impatient.py ARGUMENTS``."""

from mpicomp.cli import console, main

console.PLAIN_PROGRESS_S = 0.001
main()
