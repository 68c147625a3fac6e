"""Backend mpicomp of torch.distributed: the bits of each collective for each dtype, works, order, errors, groups."""

import os
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size > 5:
    pytest.skip("runs on up to 5 ranks", allow_module_level=True)
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")

import torch.distributed as dist  # noqa: E402

from mpicomp.comm import point_to_point  # noqa: E402
from mpicomp.comm.nonblocking import threads_allowed  # noqa: E402
from mpicomp.comm.point_to_point import release_complete  # noqa: E402
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument, MpicompError, RankLeft  # noqa: E402
from mpicomp.torch.backend import create, is_asked_for, shared_store, together  # noqa: E402

torch.set_num_threads(1)
# PyTorch 2.13 warns of names that earlier versions need
pytestmark = [pytest.mark.usefixtures("group"), pytest.mark.filterwarnings("ignore::FutureWarning")]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
INTEGERS += [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
COMPLEX = [torch.complex64, torch.complex128]
REAL = FLOATS + INTEGERS
ALL = [*REAL, *COMPLEX, torch.bool]
OPS = {
    "SUM": lambda x: x.sum(0), "PRODUCT": lambda x: x.prod(0), "MIN": lambda x: x.min(0), "MAX": lambda x: x.max(0),
    "BAND": np.bitwise_and.reduce, "BOR": np.bitwise_or.reduce, "BXOR": np.bitwise_xor.reduce,
}
SHAPES = [(), (0,), (7,), (3, 5), (40_000,)]


def of_rank(rank, shape, seed, dtype):
    """Small integers, so that every order of sums has the same bits."""
    values = np.random.default_rng([seed, rank]).integers(0, 4, shape)
    return torch.tensor(values % 2 if dtype == torch.bool else values).to(dtype)


def everyone(comm, shape, seed, dtype):
    return [of_rank(rank, shape, seed, dtype) for rank in range(comm.size)]


def expected(op, tensors):
    """NumPy's reduction in float64, or of integers."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        stacked = np.stack([one.numpy() for one in tensors])
        found = {"SUM": stacked.any(0), "PRODUCT": stacked.all(0), "MIN": stacked.all(0), "MAX": stacked.any(0)}
        return torch.tensor(found[op] if op in found else OPS[op](stacked))
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
    stacked = np.stack([one.to(wide).numpy() for one in tensors])
    if op == "AVG" and dtype.is_complex:
        return torch.complex(*(expected(op, [part(one) for one in tensors]) for part in (torch.real, torch.imag)))
    if op == "AVG":
        mean = stacked.sum(0, dtype=stacked.dtype) / len(tensors)
        return torch.tensor(mean).to(torch.float32 if dtype in FLOATS[2:] else dtype).to(dtype)
    return torch.tensor(np.asarray(OPS[op](stacked)).astype(stacked.dtype)).to(dtype)


def same(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert torch.equal(found, wanted), f"{found} is not {wanted}"


# -- reductions


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_all_reduce(comm, seed, dtype):
    ops = ["SUM"] if dtype.is_complex else ["SUM", "PRODUCT", "MIN", "MAX"]
    ops += [] if dtype == torch.bool else ["AVG"]
    ops += [] if dtype in FLOATS + COMPLEX else ["BAND", "BOR", "BXOR"]
    for op in ops:
        for shape in SHAPES:
            tensors = everyone(comm, shape, seed, dtype)
            mine = tensors[comm.rank].clone()
            dist.all_reduce(mine, getattr(dist.ReduceOp, op))
            same(mine, expected(op, tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool], ids=str)
def test_tensors_that_are_not_in_c_order(comm, seed, dtype):
    tensors = everyone(comm, (6, 4), seed, dtype)
    mine = tensors[comm.rank].clone().t()
    dist.group.WORLD.allreduce(mine).wait()
    same(mine, expected("SUM", tensors).t())
    root = comm.size - 1
    strided = torch.stack([tensors[comm.rank]] * 2, -1)[..., 0]
    dist.broadcast(strided, root)
    same(strided, tensors[root])
    whole = torch.empty(4, 6 * comm.size, dtype=dtype).t()
    dist.all_gather_into_tensor(whole, tensors[comm.rank].t().contiguous().t())
    same(whole, torch.cat(tensors))


def test_another_order_on_one_rank(comm):
    """The same call, whether or not the elements must be copied."""
    mine = torch.ones(2, 3).t() if comm.rank == 0 else torch.ones(3, 2)
    dist.group.WORLD.allreduce(mine).wait()
    same(mine, torch.full((3, 2), float(comm.size)))


def test_numbers_that_are_conjugated_or_negated_when_read(comm):
    numbers = torch.full((3,), complex(1, comm.rank + 1))
    total = sum(range(1, comm.size + 1))
    conjugated = numbers.clone().conj()
    dist.group.WORLD.allreduce([conjugated]).wait()
    same(conjugated.resolve_conj(), torch.full((3,), complex(comm.size, -total)))
    negated = numbers.clone().conj().imag
    dist.all_reduce(negated, dist.ReduceOp.MIN)
    same(negated.resolve_neg(), torch.full((3,), -float(comm.size)))
    sent = [torch.empty_like(numbers) for _ in range(comm.size)]
    dist.group.WORLD.allgather([sent], [numbers.conj()]).wait()
    for rank, one in enumerate(sent):
        same(one, torch.full((3,), complex(1, -rank - 1)))


def test_conjugates_are_reduced_by_value(comm, group):
    """On some ranks alone, as an input, as an output, and where all ranks but the root reduce a copy."""
    number = complex(1, 2)
    total = torch.full((2,), comm.size * number.conjugate())
    mixed = torch.full((2,), number).conj() if comm.rank == 0 else torch.full((2,), number.conjugate())
    group.allreduce([mixed]).wait()
    same(mixed.resolve_conj(), total)
    given = torch.full((2 * comm.size,), number).conj()
    for block in (torch.empty_like(total), torch.empty_like(total).conj()):
        options = dist.ReduceScatterOptions()
        group._reduce_scatter_base(block, given, options).wait()
        same(block.resolve_conj(), total)
        block.zero_()
        group.reduce_scatter([block], [list(given.chunk(comm.size))], options).wait()
        same(block.resolve_conj(), total)
    for root in range(comm.size):
        mine = torch.full((2,), number).conj()
        group.reduce([mine], root).wait()
        same(mine.resolve_conj(), total if comm.rank == root else total / comm.size)


@pytest.mark.parametrize("inside", [True, False])
def test_tensors_of_inference_mode(comm, inside):
    """Calls write them inside that mode, also in the group's thread, and outside."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    with torch.inference_mode():
        mean, got = torch.full((4,), comm.rank), torch.zeros(3, 2).t()
        part, whole = torch.zeros(2), torch.ones(2 * comm.size)
    with torch.inference_mode(inside):
        for late in (False, True):
            work = dist.all_reduce(mean, dist.ReduceOp.AVG, async_op=late)
            dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG, async_op=late)
            work and work.wait()
        if comm.size > 1:
            dist.send(torch.ones(2, 3), right)
            dist.recv(got, left)
            same(got, torch.ones(2, 3))
    dist.barrier()
    same(mean, torch.full((4,), sum(range(comm.size)) // comm.size))
    same(part, torch.ones(2))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(comm, seed, kind):
    """A sum in half precision would lose the ones beside 2048."""
    dtype = getattr(torch, kind)
    big = 2048.0 if kind == "float16" else 256.0
    mine = torch.full((comm.size * 8,), big if comm.rank == 0 else 1.0, dtype=dtype)
    wanted = torch.full((8,), big + comm.size - 1, dtype=torch.float32).to(dtype)
    block = torch.empty(8, dtype=dtype)
    dist.reduce_scatter_tensor(block, mine)
    same(block, wanted)
    dist.all_reduce(mine)
    same(mine[:8], wanted)


@pytest.mark.parametrize("dtype", REAL + COMPLEX, ids=str)
def test_reduce_scatter(comm, seed, dtype):
    for op in ("SUM",) if dtype.is_complex else ("SUM", "MAX", "AVG"):
        for shape in ((1,), (5, 3), (30_000,)):
            tensors = everyone(comm, (comm.size, *shape), seed, dtype)
            wanted = expected(op, tensors)[comm.rank]
            given, code = tensors[comm.rank].clone(), getattr(dist.ReduceOp, op)
            block = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter(block, list(given), code)
            same(block, wanted)
            block.zero_()
            dist.reduce_scatter_tensor(block, given.view(-1, *shape[1:]), code)
            same(block, wanted)
            same(given, tensors[comm.rank])


def test_reduce_scatter_of_unlike_blocks(comm, seed):
    tensors = everyone(comm, (comm.size * (comm.size + 1) // 2,), seed, torch.float32)
    counts = list(range(1, comm.size + 1))
    block = torch.empty(counts[comm.rank])
    dist.reduce_scatter(block, list(torch.split(tensors[comm.rank], counts)))
    same(block, torch.split(expected("SUM", tensors), counts)[comm.rank])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_reduce_changes_the_root_alone(comm, seed, dtype):
    tensors = everyone(comm, (9,), seed, dtype)
    for root in range(comm.size):
        mine = tensors[comm.rank].clone()
        dist.reduce(mine, root)
        same(mine, expected("SUM", tensors) if comm.rank == root else tensors[comm.rank])


# -- movements


@pytest.mark.parametrize("dtype", [*ALL, torch.float8_e4m3fn], ids=str)
def test_movements(comm, seed, dtype):
    size, rank = comm.size, comm.rank
    for shape in ((), (3, 5), (20_000,)):
        tensors = everyone(comm, shape, seed, dtype)
        mine = tensors[rank]
        for root in {0, size - 1}:
            copy = mine.clone()
            dist.broadcast(copy, root)
            assert same_bits(copy, tensors[root])
            gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, gathered, root)
            assert rank != root or all(map(same_bits, gathered, tensors))
            block = torch.empty_like(mine)
            dist.scatter(block, tensors if rank == root else None, root)
            assert same_bits(block, tensors[rank])
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        assert all(map(same_bits, gathered, tensors))
        whole = torch.empty((size, *shape), dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert all(map(same_bits, whole, tensors))
        swapped = [torch.empty_like(mine) for _ in range(size)]
        dist.all_to_all(swapped, [of_rank(10 * rank + peer, shape, seed, dtype) for peer in range(size)])
        assert all(map(same_bits, swapped, [of_rank(10 * peer + rank, shape, seed, dtype) for peer in range(size)]))


def same_bits(some, other):
    bits = [one.contiguous().view(-1).view(torch.uint8) for one in (some, other)]
    return some.dtype == other.dtype and some.shape == other.shape and torch.equal(*bits)


def test_lengths_that_differ(comm):
    size, rank = comm.size, comm.rank
    outputs = [torch.empty(peer) for peer in range(size)]
    dist.all_gather(outputs, torch.full((rank,), float(rank)))
    for peer, one in enumerate(outputs):
        same(one, torch.full((peer,), float(peer)))
    sent = torch.cat([torch.full((peer + rank, 2), rank) for peer in range(size)])
    splits = [peer + rank for peer in range(size)]
    got = torch.empty(sum(splits), 2, dtype=torch.int64)
    dist.all_to_all_single(got, sent, splits, splits)
    same(got, torch.cat([torch.full((peer + rank, 2), peer) for peer in range(size)]))
    equal = torch.arange(2 * size) + 100 * rank
    got = torch.empty_like(equal)
    dist.all_to_all_single(got, equal)
    same(got, torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * peer for peer in range(size)]))


def test_a_lone_element_of_a_column(comm, group):
    """It is contiguous with any stride; one rank alone has one."""
    columns = [torch.arange(6.0 * (rank + 1)).reshape(-1, 6)[:, 2] for rank in range(comm.size)]
    outputs = [torch.empty(one.shape) for one in columns]
    dist.all_gather(outputs, columns[comm.rank])
    for output, one in zip(outputs, columns, strict=True):
        same(output, one)
    for rows in (0, 1):
        column = torch.full((rows, 6), float(comm.rank))[:, 2]
        dist.broadcast(column, comm.size - 1)
        same(column, torch.full((rows,), comm.size - 1.0))
    column = torch.full((1, 6), -1.0)[:, 2]
    blocks = [torch.full((1, 6), float(rank))[:, 2] for rank in range(comm.size)]
    dist.scatter(column, blocks if comm.rank == 0 else None, 0)
    same(column, torch.full((1,), float(comm.rank)))


def test_scatter_and_gather_between_shapes(comm):
    """Tensors of as many elements, on the root as on the others."""
    blocks = [torch.arange(4.0) + 10 * rank for rank in range(comm.size)]
    for root in {0, comm.size - 1}:
        block = torch.empty(2, 2).t()
        dist.scatter(block, blocks if comm.rank == root else None, root)
        same(block, blocks[comm.rank].view(2, 2))
        gathered = [torch.empty(2, 2) for _ in blocks] if comm.rank == root else None
        dist.gather(blocks[comm.rank], gathered, root)
        for found, wanted in zip(gathered or [], blocks, strict=False):
            same(found, wanted.view(2, 2))


@pytest.mark.parametrize("root", [0, -1])
def test_outputs_in_the_memory_of_inputs(comm, root):
    """What a rank keeps for itself overwrites nothing that others still get."""
    root %= comm.size
    rows = torch.arange(3.0 * comm.size).view(comm.size, 3)
    for output in range(comm.size):
        memory = rows.clone()
        dist.scatter(memory[output], list(memory) if comm.rank == root else None, root)
        same(memory[output], rows[comm.rank])
        memory[output] = comm.rank
        dist.gather(memory[output], list(memory) if comm.rank == root else None, root)
        if comm.rank == root:
            same(memory, torch.arange(comm.size).repeat(3, 1).t().to(memory))


def test_coalesced(comm, seed, group):
    tensors = [everyone(comm, shape, seed, torch.float32) for shape in ((3,), (2, 2))]
    mine = [one[comm.rank].clone() for one in tensors]
    group.allreduce_coalesced(mine).wait()
    for one, given in zip(mine, tensors, strict=True):
        same(one, expected("SUM", given))
    lists = [[torch.empty(one.shape) for one in mine] for _ in range(comm.size)]
    dist.all_gather_coalesced(lists, [one[comm.rank] for one in tensors])
    for rank, found in enumerate(lists):
        for one, given in zip(found, tensors, strict=True):
            same(one, given[rank])
    outputs = [torch.empty(comm.size, *one.shape) for one in mine]
    with dist._coalescing_manager():
        for output, given in zip(outputs, tensors, strict=True):
            dist.all_gather_into_tensor(output, given[comm.rank])
    for output, given in zip(outputs, tensors, strict=True):
        same(output, torch.stack(given))
    blocks = [torch.empty(one.shape) for one in mine]
    with dist._coalescing_manager(async_ops=True) as works:
        for block, output in zip(blocks, outputs, strict=True):
            dist.reduce_scatter_tensor(block, output, async_op=True)
    works.wait()
    for block, given in zip(blocks, tensors, strict=True):
        same(block, comm.size * given[comm.rank])
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        group.allreduce(mine[0])
        group.broadcast(mine[1], 0)
    works.wait()
    same(mine[0], comm.size * expected("SUM", tensors[0]))


def test_objects_and_barriers(comm, group):
    gathered = [None] * comm.size
    dist.all_gather_object(gathered, {"rank": comm.rank, "pad": "x" * 10 * comm.rank})
    assert [one["rank"] for one in gathered] == list(range(comm.size))
    objects = [{"a": 1}, "b"] if comm.rank == 0 else [None, None]
    dist.broadcast_object_list(objects, 0)
    assert objects == [{"a": 1}, "b"]
    dist.barrier()
    dist.barrier(device_ids=[0])
    group.barrier(timedelta(seconds=30)).wait()
    assert dist.barrier(async_op=True).wait()
    assert dist.get_backend() == group.name() == "mpicomp"
    assert (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size)
    assert dist.get_backend_config(group) == "cpu:mpicomp,cuda:mpicomp"


# -- messages between two ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_messages_around_a_ring(comm, seed, dtype):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    for n in (1, 100_000):  # the second is longer than MPI sends before a receive
        mine, got = of_rank(comm.rank, (n,), seed, dtype), torch.empty(n, dtype=dtype)
        ops = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(got, of_rank(left, (n,), seed, dtype))
    strided = torch.empty(4, 6, dtype=dtype).t()
    work = dist.irecv(strided, left)
    future = work.get_future()
    assert work.is_completed() in (True, False)  # at once: no rank has sent yet
    dist.send(of_rank(comm.rank, (6, 4), seed, dtype).t().contiguous().t(), right)
    if not threads_allowed(comm):
        work.wait()
    same(future.wait()[0], of_rank(left, (6, 4), seed, dtype))
    assert work.is_completed() and work.is_success() and work.source_rank() == left


def test_messages_by_tag_and_from_any_rank(comm):
    if comm.rank:
        dist.send(torch.tensor([comm.rank, 2]), 0, tag=2)
        dist.send(torch.tensor([comm.rank, 1]), 0, tag=1)
        return
    senders = []
    for _ in range(comm.size - 1):
        got = torch.empty(2, dtype=torch.int64)
        senders.append(dist.recv(got, tag=1))
        assert got.tolist() == [senders[-1], 1]
    assert sorted(senders) == list(range(1, comm.size))
    for peer in range(1, comm.size):
        got = torch.empty(2, dtype=torch.int64)
        assert dist.recv(got, peer, tag=2) == peer
        assert got.tolist() == [peer, 2]


def test_a_message_without_an_owner_arrives(comm):
    """MPI uses its memory, a copy of a strided tensor, when nothing else does."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    n, got = 50_000, torch.empty(50_000)
    mine = torch.arange(2.0 * n).view(n, 2) + comm.rank
    dist.isend(mine[:, 0], right)
    others = [torch.full((n,), -1.0) for _ in range(20)]
    dist.recv(got, left)
    assert torch.equal(got, torch.arange(0.0, 2 * n, 2) + left)
    dist.barrier()
    release_complete()
    assert not point_to_point._ownerless and all((one == -1).all() for one in others)


@pytest.mark.parametrize("n, sent", [(3, "12"), (7, "more")])
def test_a_message_of_another_length(comm, n, sent):
    if comm.size == 1:
        return
    if comm.rank == 0:
        dist.send(torch.ones(n), 1)
    elif comm.rank == 1:
        work = dist.irecv(torch.ones(5), 0)
        with pytest.raises(Disagreement, match=rf"receive from rank 0: expected 20 bytes, rank 0 sent {sent}:"):
            work.wait()
        assert isinstance(work.exception(), Disagreement) and not work.is_success()


# -- works, and their order


def test_works_and_futures(comm):
    x = torch.full((5,), float(comm.rank))
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda done: 2 * done.value()[0])
    total = float(sum(range(comm.size)))
    same(doubled.wait(), torch.full((5,), 2 * total))
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is x
    same(future.wait()[0], torch.full((5,), total))
    late = dist.all_reduce(x, async_op=True)
    late.wait()
    same(late.get_future().wait()[0], torch.full((5,), total * comm.size))


def test_calls_run_in_order_whether_a_rank_waits_or_not(comm, seed):
    """Each rank draws which calls it waits for; the ranks must not choose alike."""
    own = np.random.default_rng([seed, comm.rank])
    x, works = torch.ones(64), []
    for number in range(200):
        if number % 7 == 3:
            dist.broadcast(x, number % comm.size)
        else:
            works.append(dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True))
            if own.random() < 0.5:
                works.pop().wait()
        if own.random() < 0.1:
            works[len(works) // 2 :] and works.pop().wait()
    for work in works:
        work.wait()
    same(x, torch.ones(64))


def test_a_callback_may_start_calls(comm, group):
    """They follow the call whose callback they are in, before those that were started later."""
    x, y, z = torch.ones(50_000), torch.ones(3), torch.ones(3)

    def then(done):
        dist.all_reduce(y)
        return dist.all_reduce(y, async_op=True).get_future()

    first = dist.all_reduce(x, async_op=True).get_future().then(then)
    second = dist.all_reduce(z, async_op=True)
    second.wait()
    first.wait().wait()
    same(y, torch.full((3,), float(comm.size**2)))


def test_calls_of_a_callback_come_before_those_that_follow_it(comm, group):
    """Also where the call itself is over, and one that is waited for at once could run in its caller's thread."""
    x, y, z = torch.ones(1_000_000), torch.ones(3), torch.full((3,), 100.0)
    started = threading.Event()

    def then(done):
        started.set()
        time.sleep(0.3 * comm.rank)  # the other ranks' next call comes earlier than that of the callback
        dist.all_reduce(y)

    before = dist.all_reduce(x, async_op=True).get_future().then(then)
    started.wait()
    time.sleep(0.1)
    dist.all_reduce(z)
    before.wait()
    same(y, torch.full((3,), float(comm.size)))
    same(z, torch.full((3,), 100.0 * comm.size))


def test_several_threads_may_call(comm):
    """A rank's threads, each with a group of its own."""
    groups = [dist.new_group(list(range(comm.size))) for _ in range(3)]
    found = [torch.ones(1000) for _ in groups]

    def work(number):
        for _ in range(20):
            dist.all_reduce(found[number], dist.ReduceOp.MAX, group=groups[number])
            dist.all_reduce(found[number], dist.ReduceOp.AVG, group=groups[number], async_op=True).wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    if threads_allowed(comm):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    for one in found:
        same(one, torch.ones(1000))
    for one in groups:
        dist.destroy_process_group(one)


# -- errors


def failing(call, kind, text):
    """The error of a call, through its work and through its future."""
    with pytest.raises(kind, match=text):
        call().wait()
    work = call()
    with pytest.raises(RuntimeError, match=text):
        work.get_future().wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), kind)


def test_unlike_shapes(comm, group):
    if comm.size == 1:
        return
    n = 4 if comm.rank == 0 else 5
    failing(lambda: dist.all_reduce(torch.ones(n), async_op=True), Disagreement, r"(?=.*\b4 elements).*\b5 elements")
    failing(lambda: dist.broadcast(torch.ones(n), 0, async_op=True), Disagreement,
            r"(?=.*\(4,\) float32).*\(5,\) float32")
    failing(lambda: dist.all_gather_into_tensor(torch.ones(comm.size * n), torch.ones(n), async_op=True),
            Disagreement, r"(?=.*\b4 elements).*\b5 elements")
    failing(lambda: dist.reduce_scatter_tensor(torch.ones(n), torch.ones(comm.size * n), async_op=True), Disagreement,
            rf"(?=.*reduce_scatter of {4 * comm.size} elements).*reduce_scatter of {5 * comm.size} elements")
    lists = [torch.ones(4) for _ in range(comm.size)]
    failing(lambda: group.gather([lists] if comm.rank == 0 else [], [torch.ones(n)], 0), Disagreement, "gather of")
    failing(lambda: dist.all_to_all_single(torch.ones(comm.size), torch.ones(comm.size + n - 4), None,
                                           [1] * (comm.size - 1) + [n - 3], async_op=True),
            Disagreement, "all_to_all: expected 1 elements from rank")
    x = torch.ones(3)
    dist.all_reduce(x)  # the group goes on
    same(x, torch.full((3,), float(comm.size)))


def test_another_collective_on_one_rank(comm):
    if comm.size == 1:
        return
    x = torch.ones(4)
    call = (lambda: dist.broadcast(x, 0, async_op=True)) if comm.rank == 0 else (
        lambda: dist.all_reduce(x, async_op=True))
    failing(call, Disagreement, "broadcast of.*Allreduce call|Allreduce call.*broadcast of")


def test_ranks_that_wait_at_once_meet_others(comm, group):
    """In the caller's thread and in another, whose waits leave the core, messages are the same."""
    sent, got = torch.arange(float(comm.size)) + comm.rank, torch.empty(comm.size)
    for turn in range(comm.size):
        work = dist.all_to_all_single(got, sent, async_op=comm.rank != turn)
        if work is not None:
            work.wait()
        same(got, torch.arange(float(comm.size)) + comm.rank)


def test_a_rank_leaves_the_others_in_a_barrier(comm, monkeypatch):
    """MPI's own would last for ever, and keep the core."""
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    group = dist.new_group()
    if comm.size > 1:
        if comm.rank == 0:
            with pytest.raises(KeyError), group.comm._engine.link.break_on_error:
                raise KeyError("=f")
        else:
            with pytest.raises(RankLeft, match="rank 0 left a collective"):
                dist.barrier(group)
    dist.destroy_process_group(group)


def reduce_scatter_of(group, op, longer):
    """Blocks of one element, but for that of rank ``longer``."""
    inputs = [torch.ones(1 + (rank == longer)) for rank in range(group.size())]
    return dist.reduce_scatter(torch.ones(inputs[group.rank()].shape), inputs, op, group, async_op=True)


SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX
UNLIKE = {  # call of rank 0, call of the others
    "AVG and SUM": (lambda g: dist.all_reduce(torch.ones(4), AVG, async_op=True),
                    lambda g: dist.all_reduce(torch.ones(4), async_op=True)),
    "complex and pairs": (lambda g: g.allreduce([torch.ones(3, dtype=torch.complex64)]),
                          lambda g: g.allreduce([torch.ones(6)])),
    "booleans and bytes": (lambda g: dist.all_reduce(torch.ones(2, dtype=torch.bool), MAX, async_op=True),
                           lambda g: dist.all_reduce(torch.ones(2, dtype=torch.uint8), MAX, async_op=True)),
    "SUM and MAX of booleans": (lambda g: dist.all_reduce(torch.ones(2, dtype=torch.bool), async_op=True),
                                lambda g: dist.all_reduce(torch.ones(2, dtype=torch.bool), MAX, async_op=True)),
    "one and two tensors": (lambda g: g.allreduce_coalesced([torch.ones(3)]),
                            lambda g: g.allreduce_coalesced([torch.ones(3), torch.ones(2)])),
    "roots": (lambda g: dist.reduce(torch.ones(4), 0, async_op=True),
              lambda g: dist.reduce(torch.ones(4), 1, async_op=True)),
    "reduce and all_reduce": (lambda g: dist.reduce(torch.ones(4), 0, async_op=True),
                              lambda g: dist.all_reduce(torch.ones(4), async_op=True)),
    "blocks": (lambda g: reduce_scatter_of(g, SUM, 0), lambda g: reduce_scatter_of(g, SUM, 1)),
    "AVG and SUM of unlike blocks": (lambda g: reduce_scatter_of(g, AVG, 0), lambda g: reduce_scatter_of(g, SUM, 0)),
    "barrier and all_reduce": (lambda g: dist.barrier(async_op=True),
                               lambda g: dist.all_reduce(torch.ones(4), async_op=True)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_calls(comm, group, name):
    if comm.size > 1:
        failing(lambda: UNLIKE[name][comm.rank > 0](group), Disagreement, "ranks disagree on a collective")


def test_every_call_counts_once(comm, group, monkeypatch):
    """Which calls are compared goes by their number: after an unlike one that was not, ranks still compare alike."""
    monkeypatch.setenv("MPICOMP_CHECK", "auto")
    own = dist.new_group()
    plain = own.comm._engine.plain
    for call in (lambda: dist.all_reduce(torch.ones(4), group=own), lambda: dist.all_reduce(torch.ones(4), AVG, own),
                 lambda: dist.all_reduce(torch.ones(4, dtype=torch.bool), SUM, own),
                 lambda: dist.reduce(torch.ones(4), 0, group=own), lambda: reduce_scatter_of(own, AVG, 0).wait()):
        before = plain.calls
        call()
        assert plain.calls == before + 1
    dist.destroy_process_group(own)


REFUSED = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "SUM", BufferRefused, "dense tensors, got a sparse_coo one"),
    "float8": (lambda: torch.ones(3).to(torch.float8_e5m2), "SUM", BufferRefused, "convert them to float32"),
    "bits of floats": (lambda: torch.ones(3), "BAND", InvalidArgument, "float32 by SUM, AVG.*got BAND"),
    "mean of booleans": (lambda: torch.ones(3, dtype=torch.bool), "AVG", InvalidArgument, "got AVG"),
    "products of complex": (lambda: torch.ones(3, dtype=torch.complex64), "PRODUCT", InvalidArgument, "by SUM, AVG"),
    "expanded": (lambda: torch.ones(1).expand(3), "SUM", BufferRefused, "memory for each of its elements"),
    "meta": (lambda: torch.ones(3, device="meta"), "SUM", BufferRefused, "host or CUDA memory, got one on meta"),
}


@pytest.mark.parametrize("on", ["all", "one"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_every_rank(comm, group, name, on):
    make, op, kind, text = REFUSED[name]
    bad = on == "all" or comm.rank == comm.size - 1

    def call():
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op) if bad else dist.ReduceOp.SUM
        return group.allreduce([make() if bad else torch.ones(3)], options)

    failing(call, kind, text)


OUTPUTS = {  # calls with an output of as many elements as twice the ranks, or with several
    "broadcast": lambda g, x, ones: g.broadcast(x, 0),
    "all_gather": lambda g, x, ones: g.allgather([[x] * g.size()], [ones]),
    "all_gather_single": lambda g, x, ones: g.all_gather_single(x, torch.ones(2)),
    "reduce": lambda g, x, ones: g.reduce([x], 0),
    "reduce_scatter": lambda g, x, ones: g.reduce_scatter([x], [[ones] * g.size()]),
    "gather": lambda g, x, ones: g.gather([[x] * g.size()] if g.rank() == 0 else [], [ones], 0),
    "scatter": lambda g, x, ones: g.scatter([x], [[ones] * g.size()] if g.rank() == 0 else [], 0),
    "all_to_all": lambda g, x, ones: g.alltoall([x] * g.size(), [ones] * g.size()),
    "all_to_all_single": lambda g, x, ones: g.all_to_all_single(x, ones, [], []),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_expanded_outputs_on_one_rank(comm, group, name):
    ones = torch.ones(2 * comm.size)
    output = torch.ones(1).expand(2 * comm.size) if comm.rank == 0 else ones.clone()
    failing(lambda: OUTPUTS[name](group, output, ones), BufferRefused, "an output must have memory")


def test_expanded_inputs(comm):
    block = torch.empty(2)
    dist.reduce_scatter_tensor(block, torch.ones(1).expand(2 * comm.size))
    same(block, torch.full((2,), float(comm.size)))


def test_premultiplied_sums_are_refused(comm, group):
    op = dist._make_nccl_premul_sum(2.0)
    failing(lambda: dist.all_reduce(torch.ones(3), op, async_op=True), InvalidArgument, "got PREMUL_SUM")


def test_roots_and_numbers_of_tensors(comm, group):
    failing(lambda: group.broadcast(torch.ones(3), comm.size), InvalidArgument, "root must be a rank of the group")
    failing(lambda: group.allgather([[torch.ones(3)] * (comm.size + 1)], [torch.ones(3)]), InvalidArgument,
            "output tensors must be one per rank")
    two = [torch.ones(3)] * 2
    failing(lambda: group.allgather_coalesced([two] * (comm.size + 1), two), InvalidArgument,
            f"output tensors must be one per rank, {comm.size}, got {comm.size + 1}")
    lists = [two[: 1 + (comm.rank < comm.size - 1)], *[two] * (comm.size - 1)]  # one rank alone lacks an output
    failing(lambda: group.allgather_coalesced(lists, two), InvalidArgument, "must have one per input, 2, got 1")
    failing(lambda: dist.all_to_all_single(torch.ones(comm.size), torch.ones(comm.size), [1] * comm.size,
                                           [2] * comm.size, async_op=True), InvalidArgument, "split sizes must")
    with pytest.raises(InvalidArgument, match="one tensor per rank, got 2"):
        group.reduce([torch.ones(3)] * 2, 0)


# -- groups


def test_new_groups(comm):
    """Only members call their group's collectives, and sums stay among them."""
    lists = [[rank] for rank in range(comm.size)] + [list(range(0, comm.size, 2)), list(range(comm.size))[::-1]]
    for ranks in lists:
        made = dist.new_group(ranks)
        if comm.rank in ranks:
            x = torch.tensor([comm.rank])
            dist.all_reduce(x, group=made)
            assert x.item() == sum(ranks)
            assert dist.get_process_group_ranks(made) == sorted(ranks)
            dist.broadcast(x, ranks[0], group=made)
            dist.destroy_process_group(made)
    pairs, _ = dist.new_subgroups(group_size=1)
    x = torch.tensor([comm.rank])
    dist.all_reduce(x, group=pairs)
    assert x.item() == comm.rank


def test_a_destroyed_group(comm):
    made = dist.new_group(list(range(comm.size)))
    dist.destroy_process_group(made)
    for call in (lambda: made.allreduce([torch.ones(2)]), lambda: made.recv([torch.ones(2)], 0)):
        with pytest.raises(InvalidArgument, match="this process group is destroyed"):
            call()


def test_a_group_that_only_members_make(comm):
    ranks = list(range(1, comm.size))
    if comm.rank in ranks:
        made = dist.new_group(ranks, use_local_synchronization=True)
        x = torch.tensor([1.0])
        dist.all_reduce(x, group=made)
        assert x.item() == len(ranks)
        dist.destroy_process_group(made)


class Given:
    """PyTorch's description of a process group."""

    def __init__(self, rank, size):
        self.group_rank, self.group_size, self.global_ranks_in_group, self.store = rank, size, [], None


def test_another_world_size(comm):
    size = comm.size + (comm.rank == comm.size - 1)  # one rank alone
    with pytest.raises(InvalidArgument, match=rf"^rank {comm.size - 1}: backend mpicomp has MPI's ranks: expected rank "
                                              rf"{comm.size - 1} of {comm.size}, got rank {comm.size - 1} of "
                                              rf"{comm.size + 1} .*: leave both out"):
        create(Given(comm.rank, size), None)


def test_the_rendezvous_of_other_backends_is_pytorchs_own():
    assert not is_asked_for()
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        next(dist.rendezvous("env://"))


def test_an_error_of_one_rank_while_ranks_meet(comm):
    def work():
        if comm.rank == comm.size - 1:
            raise KeyError("lost")

    with pytest.raises(KeyError, match=f"rank {comm.size - 1}: 'lost'"):
        together(comm, work)


def test_a_malformed_address(comm, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "my..host")
    with pytest.raises(MpicompError, match=r"^rank 0: cannot reach rank 0's store at my\.\.host: set MASTER_ADDR"):
        shared_store(comm)


@pytest.mark.parametrize("variables, url", [
    ({}, "env://"), ({"RANK": 0, "WORLD_SIZE": 7}, "env://"), ({"WORLD_SIZE": 7}, "env://"),
    ({"RANK": "abc"}, "env://"),
    ({"none": 0}, "tcp://localhost:1?rank=0&world_size=7"),
])
def test_the_environment(comm, group, variables, url, monkeypatch):
    """In a group of its own: the default one is there already."""
    assert os.environ.get("RANK") is None
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))

    def init_process_group(backend):
        return next(dist.rendezvous(url))

    if not variables:
        store, rank, size = init_process_group("mpicomp")
        assert (rank, size) == (comm.rank, comm.size)
        store.set(f"key {rank}", str(rank))
        store.wait([f"key {peer}" for peer in range(size)])
        comm.Barrier()
    else:
        with pytest.raises(InvalidArgument, match=r"got rank (. of 7|abc of)"):
            init_process_group("cpu:mpicomp")
