"""``python -m mpicomp.cli``: the command if its script is not on the path."""

from . import main

main()
