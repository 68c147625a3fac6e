"""Exit codes, and the outcome of a command on one rank: its exit code and its message."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import click

from ..errors import MpicompError

FAILURE_GRACE_S = 1.0  # a failed rank waits this long for the others to fail the same way
SIGNAL_GRACE_S = 0.3  # an interrupted rank waits this long
FOLDER_GONE = "the working folder was removed: change to a folder that exists (cd), and start again"
INTERRUPTED_TEXT = "Interrupted; all ranks stop."


class ExitCode(IntEnum):
    """Every exit code of the command line; docs/usage.md explains them."""

    GOOD = 0
    FAILED = 1  # the command line is wrong, a file cannot be used, or a rank failed
    WRONG_RESULT = 2
    SLOWER = 3  # than the baseline
    CALL_TIMED_OUT = 70  # MPICOMP_TIMEOUT: comm/safety/watchdog.py
    LEFT_EARLY = 73  # one rank ended, others did not
    STOPPED = 75  # EX_TEMPFAIL of sysexits.h: not complete, start the same command again
    RANK_GIVEN_UP = 76  # train --ft: comm/safety/survivors.py
    STEP_TIMED_OUT = 124  # as timeout(1): bench/watchdog.py
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Outcome:
    """Exit code and message ("" for none) of the command on this rank."""

    code: int
    text: str = ""
    patience_s: float = FAILURE_GRACE_S  # how long the other ranks may take to end too
    cause: str = ""  # ranks with the same cause print one message; without a cause the text counts


class Interrupted(SystemExit):
    """SIGINT or SIGTERM arrived; passes through click and through ``except Exception``."""


def outcome_of(call: Callable[[], object]) -> Outcome:
    """Run ``call`` and turn its return value or its exception into an outcome."""
    try:
        result = call()
        sys.stdout.flush()
        return Outcome(result if isinstance(result, int) else ExitCode.GOOD)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        return Outcome(exit_code(error), INTERRUPTED_TEXT, SIGNAL_GRACE_S)
    except SystemExit as error:
        return Outcome(exit_code(error), error.code if isinstance(error.code, str) else "")
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        return Outcome(ExitCode.FAILED, text.getvalue().rstrip())  # click's own 2 is a wrong result here
    except BrokenPipeError:  # the reader of the output has seen enough, as in: mpicomp schemes | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Outcome(ExitCode.FAILED)
    except (MpicompError, OSError, MemoryError) as error:  # the user can correct these: no traceback
        debug = f"{traceback.format_exc()}\n" if os.environ.get("MPICOMP_DEBUG", "0") not in ("", "0") else ""
        return Outcome(ExitCode.FAILED, f"{debug}Error: {message(error)}")
    except BaseException as error:  # a bug; its text may contain data, which differ between ranks
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error)} {where.filename} {where.lineno}"
        return Outcome(ExitCode.FAILED, traceback.format_exc().rstrip(), cause=cause)


def message(error: Exception) -> str:
    """The message for the user: for errors of the system the file and the reason, without the number."""
    if isinstance(error, MemoryError):
        return (f"not enough memory ({str(error) or 'Python ran out of it'}): take smaller sizes, or fewer ranks "
                "per node")  # fmt: skip
    if isinstance(error, FileNotFoundError) and error.filename is None and _folder_is_gone():
        return FOLDER_GONE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'reading or writing'}: {error.strerror}"
    return str(error)


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends with ``error``."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return ExitCode.INTERRUPTED if isinstance(error, (KeyboardInterrupt, click.Abort)) else ExitCode.FAILED
