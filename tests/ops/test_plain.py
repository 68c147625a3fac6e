"""Which arrays go to MPI unseen: those that nothing has to be refused of, and nothing done to."""

from __future__ import annotations

import numpy as np
import pytest

from mpicomp.ops.node_shared import PlainCalls, plain_nbytes


@pytest.mark.parametrize("dtype", [*"fdbBhHiIlLqQ"])
def test_covered(dtype):
    send, receive = np.ones((3, 5), dtype), np.ones((3, 5), dtype)
    assert plain_nbytes(send, receive) == plain_nbytes(None, receive) == receive.nbytes
    assert plain_nbytes(np.ones(0, dtype), np.ones(0, dtype)) == 0


@pytest.mark.parametrize("dtype", ["?", "e", "F", "D", "g", ">f4", ">i8", "M8[s]", "S4", "O"])
def test_other_dtypes(dtype):
    x = np.zeros(4, dtype)
    assert plain_nbytes(None, x) == plain_nbytes(x.copy(), x) == -1


def test_other_packages_dtypes_with_numpys_letters():
    dtype = np.dtype(pytest.importorskip("ml_dtypes").float8_e4m3b11fnuz)
    assert dtype.char == "L"
    x = np.zeros(8, dtype)
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


class Comms:
    """A communicator as `PlainCalls` sees one; MPI's own call is ``native``."""

    def __init__(self, error=None):
        self.done, self.compared, self.error, self.refuses = [], [], error, None
        self.plain = PlainCalls(Comms.native, IN_PLACE, size=2, logged=True)
        self.plain.limit, self.plain.mask = 64, 7

    def native(self, send, receive, op):
        self.done.append((send, receive, op, self.plain.going))
        if self.error:
            raise self.error

    def _compare_plain(self, text):
        self.compared.append((self.plain.calls, text, self.plain.comparing, self.plain.going))
        if self.refuses:
            raise self.refuses


IN_PLACE = object()


def describe(op, receive):
    return f"{op} of {receive.size}"


def test_calls_like_one_before_go_straight_to_mpi():
    comm, x, op = Comms(), np.ones(4, np.float32), object()
    assert not comm.plain.run(comm, IN_PLACE, x, op)
    comm.plain.learn(IN_PLACE, x, op, describe)
    assert comm.plain.run(comm, IN_PLACE, x, op)
    assert comm.plain.run(comm, x.copy(), x, op)
    assert [one[1] is x for one in comm.done] == [True, True]
    assert not comm.plain.run(comm, IN_PLACE, x[:3], op)
    assert not comm.plain.run(comm, IN_PLACE, x, object())
    assert not comm.plain.run(comm, IN_PLACE, x.view(np.int32), op)
    assert (comm.plain.calls, comm.plain.number, comm.plain.bytes_sent) == (2, 2, 32)
    comm.plain.forget()
    assert not comm.plain.run(comm, IN_PLACE, x, op)


def test_calls_beyond_the_limit_are_not_learned():
    comm, x = Comms(), np.ones(17, np.float32)
    comm.plain.learn(IN_PLACE, x, None, describe)
    assert not comm.plain.run(comm, IN_PLACE, x, None)
    comm.plain.learn(IN_PLACE, x[:16], None, describe)
    assert comm.plain.run(comm, IN_PLACE, x[:16], None)


def test_every_so_many_th_call_is_compared_before_mpi_has_it():
    comm, x = Comms(), np.ones(4)
    comm.plain.learn(IN_PLACE, x, "sum", describe)
    for _ in range(24):
        assert comm.plain.run(comm, IN_PLACE, x, "sum")
        assert len(comm.compared) == comm.plain.calls // 8
    assert [(number, text) for number, text, _, _ in comm.compared] == [(n, "sum of 4") for n in (8, 16, 24)]
    assert [(comparing, going[0]) for _, _, comparing, going in comm.compared] == [(True, n) for n in (8, 16, 24)]
    assert len(comm.done) == comm.plain.number == 24
    assert not comm.plain.comparing


def test_a_refused_call_does_not_reach_mpi():
    comm, x = Comms(), np.ones(4)
    comm.plain.mask, comm.refuses = 0, ValueError("ranks disagree")
    comm.plain.learn(IN_PLACE, x, None, describe)
    with pytest.raises(ValueError, match="ranks disagree"):
        comm.plain.run(comm, IN_PLACE, x, None)
    assert (comm.done, comm.plain.bytes_sent, comm.plain.calls) == ([], 0, 1)
    assert comm.plain.going is None
    assert not comm.plain.comparing


def test_the_last_64_calls_are_told():
    comm, x, op = Comms(), np.ones(3), object()
    comm.plain.mask = -1
    comm.plain.learn(IN_PLACE, x, op, describe)
    for _ in range(70):
        comm.plain.run(comm, IN_PLACE, x, op)
    told = comm.plain.latest()
    assert [number for number, _, _ in told] == list(range(7, 71))
    assert {shape for _, _, shape in told} == {(24, x.dtype, op)}
    assert sorted(begun for _, begun, _ in told) == [begun for _, begun, _ in told]
    assert comm.done[-1][3] == told[-1]
    assert comm.plain.going is None


def test_an_error_of_mpi_ends_the_call():
    comm, x = Comms(RuntimeError("broken")), np.ones(3)
    comm.plain.learn(IN_PLACE, x, None, describe)
    with pytest.raises(RuntimeError, match="broken"):
        comm.plain.run(comm, IN_PLACE, x, None)
    assert comm.plain.going is None
