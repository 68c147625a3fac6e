"""``mpicomp bench`` with two more algorithms, one wrong and one that hangs."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

from mpicomp import allreduce
from mpicomp.cli import main


def wrong(link: Any, work: Any, op: str, ops: Any, scratch: Any) -> None:
    link.native_allreduce(work, op)
    if link.rank == link.size - 1:
        work[work.size // 2] += 1


def hang(link: Any, work: Any, op: str, ops: Any, scratch: Any) -> None:
    while link.rank == link.size - 1:
        time.sleep(1)
    link.native_allreduce(work, op)


def register(name: str, function: Any) -> None:
    sys.modules[f"faulty_{name}"] = SimpleNamespace(allreduce=function)  # type: ignore[assignment]
    allreduce.ALGORITHMS[name] = f"faulty_{name}"


if __name__ == "__main__":
    register("wrong", wrong)
    register("hang", hang)
    main(["bench", *sys.argv[1:]])
