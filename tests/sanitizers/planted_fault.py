"""A fault that a sanitizer must find, so that its silence means something:

    planted_fault.py address | undefined | thread
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from sanitize import COMMON, FLAGS

from mpicomp.ops import cpu

OVERFLOW = 'extern "C" __attribute__((visibility("default"))) int successor(int x) { return x + 1; }'


def read_beyond_the_end() -> None:
    x = np.zeros(1 << 16)
    beyond = np.lib.stride_tricks.as_strided(x, (x.size + 8,))
    cpu.add(np.zeros(beyond.size), beyond)


def overflow() -> None:
    """In a library compiled as the operations are, beside them: no input is known that makes one of theirs overflow."""
    source = Path(os.environ["PYTHONPATH"]) / "planted.cpp"
    library = source.with_suffix(".so")
    source.write_text(OVERFLOW)
    compiler = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(["g++", *COMMON, *FLAGS["address"], source, "-o", library], env=compiler, check=True)
    ctypes.CDLL(str(library)).successor(2**31 - 1)


def two_threads_one_array() -> None:
    x = np.zeros(1 << 16)

    def add() -> None:
        for _ in range(50):
            cpu.add(x, np.ones(x.size))

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    {"address": read_beyond_the_end, "undefined": overflow, "thread": two_threads_one_array}[sys.argv[1]]()
    sys.exit("the planted fault was not found")
