"""A fault that a sanitizer must find, so that its silence means something: ``planted_fault.py address | thread``."""

from __future__ import annotations

import sys
import threading

import numpy as np

from mpicomp.ops import cpu


def read_beyond_the_end() -> None:
    x = np.zeros(1 << 16)
    beyond = np.lib.stride_tricks.as_strided(x, (x.size + 8,))
    cpu.add(np.zeros(beyond.size), beyond)


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
    {"address": read_beyond_the_end, "thread": two_threads_one_array}[sys.argv[1]]()
    sys.exit("the planted fault was not found")
