"""``mpicomp bench`` with two more algorithms, one wrong and one that hangs. SLOW_DISK: seconds that writing takes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpicomp import allreduce
from mpicomp.bench import documents
from mpicomp.cli import main


def wrong(link: Any, work: Any, op: str, ops: Any, scratch: Any, factor: float, source: Any) -> None:
    link.native_allreduce(work, op, source)
    if link.rank == link.size - 1:
        work[work.size // 2] += 1


def hang(link: Any, work: Any, op: str, ops: Any, scratch: Any, factor: float, source: Any) -> None:
    while link.rank == link.size - 1:
        time.sleep(1)
    link.native_allreduce(work, op, source)


def register(name: str, function: Any) -> None:
    sys.modules[f"faulty_{name}"] = SimpleNamespace(allreduce=function)  # type: ignore[assignment]
    allreduce.ALGORITHMS[name] = f"faulty_{name}"


def write_slowly(path: Path, document: dict[str, Any], suffix: str, write: Any = documents.write) -> None:
    time.sleep(float(os.environ.get("SLOW_DISK", "0")))
    write(path, document, suffix)


if __name__ == "__main__":
    documents.write = write_slowly
    register("wrong", wrong)
    register("hang", hang)
    main(["bench", *sys.argv[1:]])
