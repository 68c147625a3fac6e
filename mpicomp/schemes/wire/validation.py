"""Validation of received data before its use: lengths before memory is taken, indices before they are followed.

A message that does not hold what its form promises raises `CorruptMessage`, which ends the job: a receiver cannot know
what its sender meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from types import TracebackType

import numpy as np

from ...errors import CorruptMessage, InvalidArgument
from ...ops.protocol import Ops
from ...types import Array, address
from ..interfaces import StepContext

BYTES_A_VALUE = 64  # no index with its code and its share of the scales is longer


def ascending(indices: Array, ctx: StepContext) -> Array:
    """``indices``, where they ascend within the vector; one read of the list.

    Raises
    ------
    CorruptMessage
    """
    if not ctx.ops.ascends(indices, ctx.n):
        raise CorruptMessage(f"a list of indices must ascend within [0, {ctx.n}): another rank's message is damaged")
    return indices


def counts(numbers: Iterable[int], most: int, what: str) -> None:
    """Refuse numbers of ``what`` that cannot be: negative, or above ``most``."""
    for rank, number in enumerate(numbers):
        if not 0 <= number <= most:
            raise CorruptMessage(f"rank {rank} announced {number} {what}, expected at most {most}")


def longest(ctx: StepContext) -> int:
    """Bytes that no message of one worker's whole vector exceeds."""
    return BYTES_A_VALUE * (ctx.n + len(ctx.tensors) + 64)


class Received:
    """Context in which index lists that an operation refuses are another rank's: it raises CorruptMessage."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
                 ) -> None:
        if isinstance(error, InvalidArgument):
            raise CorruptMessage(f"{error}: another rank's message is damaged") from error


RECEIVED = Received()


def aligned(part: Array, nbytes: int) -> Array:
    """Part of a message; a copy, where it does not begin at a multiple of ``nbytes``."""
    return part if address(part) % nbytes == 0 else part.copy()


def lengths_at_heads(messages: dict[int, tuple[Array, int]], fields: int, ops: Ops) -> dict[int, list[list[int]]]:
    """The ``fields`` int64 numbers that each worker has at the beginning of its rank's message of bytes.

    Messages are given by rank, with the number of their workers; a device is asked once for all.
    """
    heads = []
    for message, workers in messages.values():
        end = 8 * fields * workers
        if message.size < end:
            raise CorruptMessage(f"a message of {message.size} bytes is too short for the {end} of its head")
        heads.append(message[:end])
    if not heads:
        return {}
    together = heads[0] if len(heads) == 1 else ops.concatenate(heads, heads[0].dtype)
    numbers = iter(np.array(ops.to_host(together)).view(np.int64).reshape(-1, fields).tolist())
    return {rank: list(islice(numbers, workers)) for rank, (_, workers) in messages.items()}
