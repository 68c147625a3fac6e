"""Messages in flight: several sets at once, in the order of their starts, beside other collectives."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp.comm.point_to_point import Message, PointToPoint
from mpicomp.errors import Disagreement


@pytest.mark.parametrize("n", [3, 50_000])
def test_sets_in_flight_keep_their_order(comm, n):
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    outgoing = [{rank: np.full(n, 100 * number + 10 * comm.rank + rank, np.float32) for rank in others}
                for number in range(3)]
    started = [comm.start_messages(one, dict.fromkeys(others, 4 * n), np.empty(0, np.float32)) for one in outgoing]
    comm.Allreduce(np.ones(n), np.empty(n), algorithm="ring")
    for number, messages in enumerate(started):
        comm.wait_for(messages)
        assert messages.Test()
        assert sorted(messages.received) == others
        for rank, x in messages.received.items():
            np.testing.assert_array_equal(x.view(np.float32), 100 * number + 10 * rank + comm.rank)


def test_a_message_may_have_more_bytes_than_a_count(comm):
    """Open MPI's count is undefined from 2^31 bytes on."""

    class Request:
        def Test(self, status):
            status.Set_elements(MPI.BYTE, 2**31 + 8)
            return True

    assert Message(comm, Request(), "recv", np.empty(0, np.uint8), 2**31 + 8).Test()


def test_empty_messages_are_not_sent(comm):
    before = comm.traffic
    messages = comm.start_messages({0: np.empty(0)}, {0: 0}, np.empty(0))
    assert messages.Wait() and messages.received[0].size == 0
    assert comm.traffic == before


@pytest.mark.parametrize("n, sent", [(3, "3"), (9, "more")])
def test_a_message_of_another_length(world, n, sent):
    if world.size == 1:
        return
    messages = PointToPoint(world)
    if world.rank == 0:
        messages.send(np.zeros(n, np.uint8), 1, 0).Wait()
    elif world.rank == 1:
        message = messages.recv(np.zeros(5, np.uint8), 0, 0)
        with pytest.raises(Disagreement, match=f"receive from rank 0: expected 5 bytes, rank 0 sent {sent}:"):
            message.Wait()
        assert message.Test()
    messages.free()
