"""Partition arithmetic, in the corners where other codes go wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicomp._util.partition import chunk_count, partition, pieces


@settings(deadline=None)  # no clocks on a busy machine
@given(st.integers(0, 2**40), st.integers(1, 1000))
def test_parts_cover_everything_once_and_differ_by_at_most_one(n, size):
    counts, displs = partition(n, size)
    assert sum(counts) == n
    assert max(counts) - min(counts) <= 1
    assert displs == [sum(counts[:rank]) for rank in range(size)]


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 100))
def test_pieces_cover_the_range(start, length, piece):
    covered = [i for begin, end in pieces(start, start + length, piece) for i in range(begin, end)]
    assert covered == list(range(start, start + length))
    assert len(list(pieces(start, start + length, piece))) == chunk_count(length, piece)


def test_no_parts_is_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        partition(5, 0)
