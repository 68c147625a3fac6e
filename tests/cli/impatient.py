"""The command ``mpicomp`` with progress lines every 10 ms instead of every 30 s: ``python impatient.py ARGUMENTS``."""

from mpicomp.cli import console, main

console.PLAIN_PROGRESS_S = 0.01
main()
