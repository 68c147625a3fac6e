"""Which arrays go to MPI unseen: those that nothing has to be refused of, and nothing done to."""

from __future__ import annotations

import numpy as np
import pytest

from mpicomp.ops.shared import plain_nbytes


@pytest.mark.parametrize("dtype", [*"fdbBhHiIlLqQ"])
def test_covered(dtype):
    send, receive = np.ones((3, 5), dtype), np.ones((3, 5), dtype)
    assert plain_nbytes(send, receive) == plain_nbytes(None, receive) == receive.nbytes
    assert plain_nbytes(np.ones(0, dtype), np.ones(0, dtype)) == 0


@pytest.mark.parametrize("dtype", ["?", "e", "F", "D", "g", ">f4", ">i8", "M8[s]", "S4", "O"])
def test_other_dtypes(dtype):
    x = np.zeros(4, dtype)
    assert plain_nbytes(None, x) == plain_nbytes(x.copy(), x) == -1


def test_other_memory():
    x = np.ones(8, np.float32)
    readonly = x.copy()
    readonly.flags.writeable = False
    assert plain_nbytes(None, readonly) == -1
    assert plain_nbytes(readonly, x) == x.nbytes
    assert plain_nbytes(None, x[::2]) == plain_nbytes(x[::2].copy(), x[::2]) == plain_nbytes(x[::2], x[:4].copy()) == -1
    assert plain_nbytes(None, np.ones((2, 3), np.float32, order="F")) == -1
    assert plain_nbytes(None, np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32)) == -1


def test_pairs_that_do_not_match():
    x = np.ones(8, np.float32)
    for other in (np.ones(8, np.int32), np.ones(7, np.float32), np.ones(8), [1.0] * 8, object(), np.float32(1)):
        assert plain_nbytes(other, x) == -1
    for other in ([1.0], object(), None, np.float32(1), np.ma.ones(3), memoryview(bytearray(4))):
        assert plain_nbytes(None, other) == -1


def test_overlap():
    x = np.ones(16, np.float32)
    assert plain_nbytes(x, x) == plain_nbytes(x[:8], x[1:9]) == plain_nbytes(x[1:9], x[:8]) == -1
    assert plain_nbytes(x[:8], x[8:]) == plain_nbytes(x[8:], x[:8]) == 32
