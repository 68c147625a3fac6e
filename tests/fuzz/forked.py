"""Readers that have a process of their own, as a fork of this one that serves one input after the other: a millisecond
an input instead of half a second.

Everything else is as it is: the reader's own ``main``, what it prints, how it ends, by a signal too. A fork that ends
while it reads may have been harmed by an earlier input, so the same input goes to a fresh one, whose end is the
answer. Time is limited for each input alone.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

LONGEST_S = 60  # of an input whose parent sets no limit
MOST_INPUTS = 100  # of a fork
CODE = struct.Struct("<i")


def instead_of_subprocess(main: Callable[[str], None]) -> Any:
    """Stand-in for a module's ``subprocess``: ``run([..., file])`` calls ``main(file)`` in a fork."""
    fork = Fork(main)

    def run(command: list[str], capture_output: bool, env: Any = None, timeout: float = LONGEST_S) -> Any:
        code = fork.read(command, timeout)
        if code is None and not fork.fresh:
            code = fork.read(command, timeout)
        return subprocess.CompletedProcess(command, fork.ended if code is None else code, *fork.said())

    return SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)


class Fork:
    """A fork of this process that calls ``main`` with the name of one file after the other."""

    def __init__(self, main: Callable[[str], None]) -> None:
        self._main, self._pid, self._read = main, 0, 0
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.ended = 0  # how the latest fork ended

    @property
    def fresh(self) -> bool:
        """True if the latest input was the first of its fork."""
        return self._read == 1

    def read(self, command: list[str], timeout: float) -> int | None:
        """The exit code of ``main`` for the file that the command ends with; None where the fork has ended."""
        if self._pid == 0 or self._read == MOST_INPUTS:
            self._start()
        self._read += 1
        os.write(self._requests, command[-1].encode() + b"\n")
        if not select.select([self._answers], [], [], timeout)[0]:
            self._end()
            raise subprocess.TimeoutExpired(command, timeout)
        answer = os.read(self._answers, CODE.size)
        if len(answer) == CODE.size:
            return CODE.unpack(answer)[0]
        self._end()
        return None

    def said(self) -> list[bytes]:
        """Output of ``main`` for the latest input."""
        return [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in self._said]

    def _start(self) -> None:
        self._end()
        asked, self._requests = os.pipe()
        self._answers, answered = os.pipe()
        sys.stdout.flush()
        self._pid, self._read = os.fork(), 0
        if self._pid == 0:
            os.close(self._requests)
            self._serve(asked, answered)
        os.close(asked)
        os.close(answered)

    def _end(self) -> None:
        if self._pid:
            os.close(self._requests)
            os.close(self._answers)
            os.kill(self._pid, signal.SIGKILL)  # nothing where it has ended by itself: its status is kept
            self.ended = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0

    def _serve(self, asked: int, answered: int) -> NoReturn:
        """Serve inputs in the fork until the parent closes its end."""
        faulthandler.disable()  # a crash is the parent's to tell
        limit = resource.setrlimit
        resource.setrlimit = lambda what, limits: limit(what, (limits[0], resource.getrlimit(what)[1]))  # each its own
        for number, file in enumerate(self._said, 1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        try:
            for line in open(asked):  # noqa: SIM115
                for number in (1, 2):
                    os.ftruncate(number, 0)
                    os.lseek(number, 0, os.SEEK_SET)
                signal.alarm(LONGEST_S)  # should the parent be gone
                os.write(answered, CODE.pack(_code_of(self._main, line[:-1])))
                signal.alarm(0)  # the next input may be long in coming
        finally:
            os._exit(0)


def _code_of(main: Callable[[str], None], path: str) -> int:
    """The exit code with which ``main`` would end its interpreter."""
    code = 0
    try:
        main(path)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # as an interpreter ends
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
