"""What other ranks say is checked before it is used: lengths before memory is taken, indices before they are followed.

A message that does not hold what its form promises raises `CorruptMessage`, which ends the job: a receiver cannot know
what its sender meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import CorruptMessage
from ..values import Array

BYTES_A_VALUE = 64  # no index with its code and its share of the scales is longer


def ascending(indices: Array, step: Any) -> Array:
    """``indices``, where they ascend within the vector; one read of the list.

    Raises
    ------
    CorruptMessage
    """
    if not step.ops.ascends(indices, step.n):
        raise CorruptMessage(f"a list of indices must ascend within [0, {step.n}): another rank's message is damaged")
    return indices


def counts(numbers: Iterable[int], most: int, what: str) -> None:
    """Refuse numbers of ``what`` that cannot be: negative, or above ``most``."""
    for rank, number in enumerate(numbers):
        if not 0 <= number <= most:
            raise CorruptMessage(f"rank {rank} announced {number} {what}, expected at most {most}")


def longest(step: Any) -> int:
    """Bytes that no message of one worker's whole vector exceeds."""
    return BYTES_A_VALUE * (step.n + len(step.tensors) + 64)


def lengths_at_head(message: Array, workers: int, fields: int, ops: Any) -> list[list[int]]:
    """The ``fields`` int64 numbers that each of ``workers`` has at the beginning of a message of bytes."""
    end = 8 * fields * workers
    if message.size < end:
        raise CorruptMessage(f"a message of {message.size} bytes is too short for the {end} of its head")
    return np.array(ops.to_host(message[:end])).view(np.int64).reshape(workers, fields).tolist()
