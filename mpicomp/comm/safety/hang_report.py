"""Format the hang report: this rank's current call, its messages, its last calls and its stacks."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator

from mpi4py import MPI

from ..job import this_rank, world
from ..mpi_types import op_name
from .call_log import KEPT, CallLog, Entry


def head(calls: CallLog) -> str:
    """Return the rank and its state."""
    return f"{this_rank()} is {state(calls)}"


def state(calls: CallLog) -> str:
    """Return the current or last call, without times: equal texts for ranks that do the same."""
    going = calls.going()
    if going:
        return "in " + ", in ".join([f"#{going[0].number} {describe(going[0])}", *map(describe, going[1:])])
    last = [entry for entry in calls.latest() if entry.depth == 0][-1:]
    return f"outside, after #{last[0].number} {describe(last[0])}" if last else "outside, before its first call"


def describe(entry: Entry) -> str:
    """Return the name of a call with its details."""
    return " ".join([entry.name, *map(_describe_detail, entry.details)])


def _describe_detail(detail: object) -> str:
    if isinstance(detail, MPI.Op):
        return op_name(detail)
    if isinstance(detail, tuple):
        return f"{detail[0]} elements {detail[1]}"
    return str(detail)


def body(calls: CallLog) -> str:
    """Return messages, last calls and stacks."""
    lines = [*_messages(calls), f"  last calls, at most {KEPT}, the latest at the end:", *_history(calls), *_stacks()]
    return "\n".join(lines)


def _messages(calls: CallLog) -> Iterator[str]:
    """Return the incomplete messages of the current call; the one that this rank waits for is marked."""
    if not calls.open:
        return
    waiting, started = calls.waiting, calls.messages.copy()
    for number, (request, sends, peer, nbytes, comm) in enumerate(started, 1):
        if any(one != MPI.REQUEST_NULL for one in (request if isinstance(request, list) else (request,))):
            mark = "waits for" if request is waiting else "has also started"
            way = "to" if sends else "from"
            place = f"no. {number} of the latest {len(started)} messages"
            yield f"  {mark} {nbytes} bytes {way} rank {_world_rank(comm, peer)} ({place})"


def _world_rank(comm: object, rank: int) -> int:
    assert isinstance(comm, MPI.Comm)
    return MPI.Group.Translate_ranks(comm.Get_group(), [rank], world().Get_group())[0]


def _history(calls: CallLog) -> Iterator[str]:
    now = time.monotonic()
    for entry in calls.latest():
        took = "" if entry.ended is None else ", not over"
        if entry.ended:
            took = f", took {1e3 * (entry.ended - entry.begun):.3f} ms"
        yield f"    {'  ' * entry.depth}#{entry.number} {describe(entry)}: began {now - entry.begun:.3f} s ago{took}"


def _stacks() -> Iterator[str]:
    """Return the Python stacks of all threads but this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"  thread {names.get(ident, ident)}:"
            yield "".join(traceback.format_stack(frame)).rstrip()


def write(text: str) -> None:
    """Write to standard error in one piece, past Python's file object, whose lock a hanging thread may hold."""
    data = (text.rstrip() + "\n").encode(errors="backslashreplace")
    while data:
        data = data[os.write(2, data) :]
