"""Files of compiled kernels, shared by processes: one compiles, the others wait for its file."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

# Modules that never were compiled in so long are compiled by several processes. The longest takes some 4 s of one core.
LONGEST_S = 300.0
NAP_S = 0.02
BUSY = (errno.EWOULDBLOCK, errno.EACCES)  # answers of a file system about a lock that another process holds

Compiled = tuple[bytes, dict[str, str]]  # machine code, and the kernels' names there by the launchers' names
Loadable = tuple[str, dict[str, str]]  # the same with the path of a file that `cupy.RawModule` loads


def folder() -> Path:
    """Return CuPy's own folder for compiled kernels."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def binary(name: str, compile_it: Callable[[], Compiled]) -> Loadable:
    """Return the file ``name`` of the cache, which ``compile_it`` makes if it is missing.

    If the folder cannot be written, or CuPy keeps no files, it is in this process's memory.
    """
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return in_memory(name, compile_it())
    path = folder() / f"{name}.cubin"
    try:
        found = load(path)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with turn(path):
                found = load(path) or store(path, compile_it())
        return found
    except OSError as error:
        warn_once(f"compiled kernels cannot be kept in {path.parent} ({error.strerror}): each process compiles them: "
                  "set CUPY_CACHE_DIR to a writable folder, or CUPY_CACHE_IN_MEMORY=1")  # fmt: skip
        return in_memory(name, compile_it())


def load(path: Path) -> Loadable | None:
    """Return a file of the cache; None if it is missing."""
    return (str(path), json.loads(names_of(path).read_text(encoding="utf-8"))) if path.exists() else None


def store(path: Path, compiled: Compiled) -> Loadable:
    """Write a file of the cache, of which other processes see all or nothing."""
    code, names = compiled
    for target, content in ((names_of(path), json.dumps(names).encode()), (path, code)):
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(content)
                file.close()
                Path(file.name).replace(target)
            except BaseException:  # or each process would leave another file in a full folder
                Path(file.name).unlink(missing_ok=True)
                raise
    return str(path), names


def names_of(path: Path) -> Path:
    """Return the path of the kernels' names, which is written before the code."""
    return path.with_suffix(".json")


def in_memory(name: str, compiled: Compiled) -> Loadable:
    """Return a file that no folder holds. It stays open: CuPy knows modules by their paths."""
    code, names = compiled
    file = os.memfd_create(name)
    with os.fdopen(file, "wb", closefd=False) as whole:
        whole.write(code)
    return f"/proc/self/fd/{file}", names


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Within the block, no other process is in the block for the same ``path``; for LONGEST_S at most.

    The lock ends with the process that holds it.
    """
    with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        until = time.monotonic() + LONGEST_S
        while not taken(lock) and time.monotonic() < until:
            time.sleep(NAP_S)
        yield


def taken(lock: IO[str]) -> bool:
    """Take a lock; return False if another process holds it. File systems without locks count as free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in BUSY
    return True


@cache
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
