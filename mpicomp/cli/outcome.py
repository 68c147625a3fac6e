"""How a command ended on this rank, in the words that its user gets."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ..errors import MpicompError

FAILURE_GRACE_S = 1.0  # a failed rank waits this long for the others to fail the same way
SIGNAL_GRACE_S = 0.3  # an interrupted rank waits this long
INTERRUPTED = "Interrupted; all ranks stop."


@dataclass(frozen=True)
class Outcome:
    """How the command ended on this rank: the exit code, and what is to be said about it ("" : nothing)."""

    code: int
    text: str = ""
    patience_s: float = FAILURE_GRACE_S  # how long the other ranks may take to end too
    cause: str = ""  # ranks with the same cause have one thing to say; without one the text counts


class Interrupted(SystemExit):
    """SIGINT or SIGTERM arrived; passes through click and through ``except Exception``."""


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Run ``call``; what it returned or raised, as an outcome."""
    try:
        result = call()
        sys.stdout.flush()
        return Outcome(result if isinstance(result, int) else 0)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        return Outcome(exit_code(error), INTERRUPTED, SIGNAL_GRACE_S)
    except SystemExit as error:
        return Outcome(exit_code(error), error.code if isinstance(error.code, str) else "")
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        return Outcome(error.exit_code, text.getvalue().rstrip())
    except BrokenPipeError:  # whoever read the output has seen enough, as in: mpicomp schemes | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Outcome(1)
    except (MpicompError, OSError, MemoryError) as error:  # what the user can mend needs no traceback
        debug = f"{traceback.format_exc()}\n" if os.environ.get("MPICOMP_DEBUG") else ""
        return Outcome(1, f"{debug}Error: {_words(error)}")
    except BaseException as error:  # a bug; its text may show data, which differ between ranks
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(1, traceback.format_exc().rstrip(), cause=f"{type(error)} {where.filename} {where.lineno}")


def _words(error: Exception) -> str:
    """What the user is told: of the system's errors the file and the reason, without the number."""
    if isinstance(error, MemoryError):
        return f"not enough memory ({str(error) or 'Python ran out of it'}): take smaller sizes, or fewer ranks a node"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'reading or writing'}: {error.strerror}"
    return str(error)


def exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, (KeyboardInterrupt, click.Abort)) else 1
