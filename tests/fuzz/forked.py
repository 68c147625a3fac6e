"""Readers that have a process of their own, as forks of this one: milliseconds an input instead of half a second.

Everything else is as it is: the reader's own ``main``, what it prints, how it ends, by a signal too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

POLL_S = 0.0005
LONGEST_S = 60  # of a child whose parent sets no limit


def instead_of_subprocess(main: Callable[[str], None]) -> Any:
    """What a module may have in place of ``subprocess``: ``run([..., file])`` calls ``main(file)`` in a fork."""

    def run(command: list[str], capture_output: bool, env: dict[str, str], timeout: float = LONGEST_S) -> Any:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _child(lambda: main(command[-1]), out, err)
            code = _wait(pid, command, timeout)
            return subprocess.CompletedProcess(command, code, _content(out), _content(err))

    return SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)


def _child(call: Callable[[], None], out: Any, err: Any) -> NoReturn:
    code = 0
    faulthandler.disable()  # a crash is the parent's to tell
    try:
        signal.alarm(LONGEST_S)  # should the parent be gone
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        call()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # as an interpreter ends
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, command: list[str], timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise subprocess.TimeoutExpired(command, timeout)
        time.sleep(POLL_S)


def _content(file: Any) -> bytes:
    file.seek(0)
    return file.read()
