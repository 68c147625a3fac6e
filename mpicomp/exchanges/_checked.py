"""What other ranks say is checked before it is used: lengths before memory is taken, indices before they are followed.

A message that does not hold what its form promises raises `CorruptMessage`, which ends the job: a receiver cannot know
what its sender meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
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
    return heads([message], [workers], fields, ops)[0]


def heads(messages: list[Array], workers: list[int], fields: int, ops: Any) -> list[list[list[int]]]:
    """The same of several messages, read at once."""
    ends = [8 * fields * own for own in workers]
    for message, end in zip(messages, ends, strict=True):
        if message.size < end:
            raise CorruptMessage(f"a message of {message.size} bytes is too short for the {end} of its head")
    parts = [message[:end] for message, end in zip(messages, ends, strict=True)]
    if not parts:
        return []
    whole = np.array(ops.to_host(parts[0] if len(parts) == 1 else ops.concatenate(parts, parts[0].dtype)))
    numbers, until = whole.view(np.int64).reshape(-1, fields).tolist(), [0, *accumulate(workers)]
    return [numbers[first:last] for first, last in pairwise(until)]
