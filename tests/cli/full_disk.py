"""The command ``mpicomp`` on a disk that is full when it writes results: ``python full_disk.py ARGUMENTS``."""

import errno
import os
from pathlib import Path

from mpicomp._util import atomic_files
from mpicomp.cli import main


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


atomic_files.fsync = full
main()
