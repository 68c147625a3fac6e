"""Many tensors at once: chunks that begin anew in each, and copies into one vector and back; a cut in one pass."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import INDICES, REALS, assert_same, vector, with_specials
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.gpu import cuda_runtime

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def some_spans(rng, n, chunks=(1, 3, 16, 100, 112, 256)):
    """Neighbouring spans of fresh lengths, some of them empty, each with its chunk."""
    cuts = np.sort(rng.integers(0, n + 1, 12))
    cuts[5] = cuts[4]
    return [(int(a), int(b), int(rng.choice(chunks))) for a, b in pairwise(cuts)]


def count(spans):
    return sum(-(-(stop - start) // chunk) for start, stop, chunk in spans)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("widest", [256, 1500])
def test_chunks_of_spans(ops, rng, dtype, has_memory, widest):
    for n in (0, 17, 6000):
        grad = with_specials(rng, vector(rng, n, dtype))
        memory = vector(rng, n, dtype) if has_memory else None
        spans = some_spans(rng, n, (1, 3, 112, widest))
        positions, expected = np.zeros((2, count(spans)), np.uint8 if max(s[2] for s in spans) <= 256 else np.uint16)
        ops.chunk_max(memory, grad, spans, positions)
        oracle.chunk_max(memory, grad, spans, expected)
        assert_same(positions, expected)
        for index in INDICES:
            found, wanted = np.zeros((2, len(positions)), index)
            ops.chunk_indices(positions, spans, n, found)
            oracle.chunk_indices(positions, spans, n, wanted)
            assert_same(found, wanted)


def test_one_span_is_the_whole_vector(ops, rng):
    grad = vector(rng, 1021, np.float32)
    positions, expected = np.zeros((2, 10), np.uint8)
    ops.chunk_max(None, grad, [(0, 1021, 112)], positions)
    oracle.chunk_max(None, grad, [(0, grad.size, 112)], expected)
    assert_same(positions, expected)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_top_k_of_spans(ops, rng, dtype, has_memory):
    """Tiles restart at each span, whatever it begins at; ties go to the lowest index of each."""
    for n in (0, 17, 30_000):
        grad = with_specials(rng, vector(rng, n, dtype))
        memory = vector(rng, n, dtype) if has_memory else None
        spans = [(start, stop) for start, stop, _ in some_spans(rng, n)]
        counts = [int(rng.integers(0, min(stop - start, 300) + 1)) for start, stop in spans]
        found = ops.top_k(memory, grad, spans, counts)
        assert_same(found, oracle.top_k(memory, grad, spans, counts))
    assert_same(ops.top_k(memory, grad, [(0, n)], [70]), oracle.top_k(memory, grad, [(0, grad.size)], [70]))


def test_top_k_of_spans_longer_than_a_piece(ops, rng):
    """A span exceeds one piece of digit counts, and one look-back over tiles; every tile has equal magnitudes."""
    grad = rng.integers(-3, 4, 150_000).astype(np.float32)
    spans, counts = [(0, 5), (5, 140_001), (140_001, 150_000)], [2, 70_000, 9_999]
    assert_same(ops.top_k(None, grad, spans, counts), oracle.top_k(None, grad, spans, counts))


def test_no_element_of_a_span_is_wanted(ops, rng):
    """The selection of the span before it ends where the list does, and nothing is written behind it."""
    grad = vector(rng, 9000, np.float32)
    found = ops.top_k(None, grad, [(0, 4000), (4000, 9000)], [7, 0])
    assert_same(found, oracle.top_k(None, grad[:4000], [(0, grad[:4000].size)], [7]))
    assert ops.top_k(None, grad, [(0, 4000), (4000, 9000)], [0, 0]).size == 0


def test_top_k_of_spans_refuses(ops):
    grad = np.ones(10, np.float32)
    for spans, counts, match in (([(0, 11)], [1], "spans must lie in"),
                                 ([(0, 4)], [5], r"k must be in \[0, 4\], got 5"),
                                 ([(0, 4)], [1, 2], "a count for each of 1 spans, got 2")):
        with pytest.raises(InvalidArgument, match=match):
            ops.top_k(None, grad, spans, counts)


@pytest.mark.parametrize("bad", [[100, 0, 0], [0, 12, 0], [0, 0, 250]])
def test_positions_of_spans_from_the_wire(ops, bad):
    spans = [(0, 112, 100), (200, 300, 100)]  # chunks of 100, 12 and 100 elements
    with pytest.raises(InvalidArgument, match="positions must lie inside their chunks"):
        ops.chunk_indices(np.uint8(bad), spans, 300, np.zeros(3, np.int32))


@pytest.mark.parametrize("spans", [[(0, 6, 3), (6, 10, 2)], [(0, 10, 3)]])
@pytest.mark.parametrize("change", [-1, 1])
def test_positions_and_indices_that_do_not_fit_the_chunks(ops, spans, change):
    """Refused before anything is written."""
    grad, positions, n = np.ones(10, np.float32), np.ones(4, np.uint8), 4 + change
    refuse(lambda p: ops.chunk_max(None, grad, spans, p), np.full(n, 7, np.uint8),
           match=f"positions must have 4 elements, got {n}")
    refuse(lambda p, i: ops.chunk_indices(p, spans, 10, i), positions[:3], np.full(4, 7, np.int32),
           match="positions must have 4 elements, got 3")
    refuse(lambda i: ops.chunk_indices(positions, spans, 10, i), np.full(n, 7, np.int32),
           match=f"indices must have 4 elements, got {n}")


@pytest.mark.parametrize(("spans", "match"), [
    ([(0, 6, 3), (6, 11, 2)], r"spans must lie in \[0, 10\), got 6 to 11"),
    ([(-2, 6, 4), (6, 10, 2)], r"spans must lie in \[0, 10\), got -2 to 6"),
    ([(6, 4, 1), (0, 10, 3)], r"spans must lie in \[0, 10\), got 6 to 4"),
    ([(0, 6, 3), (6, 10, 0)], r"chunk must be in \[1, 65536\], got 0"),
    ([(0, 6, 3), (6, 10, 65537)], r"chunk must be in \[1, 65536\], got 65537"),
    ([(0, 10, 0)], r"chunk must be in \[1, 65536\], got 0"),
])  # fmt: skip
def test_chunks_and_their_spans_out_of_range(ops, spans, match):
    """The same words everywhere, the oracle's, too, and nothing is written."""
    grad, positions, indices = np.ones(10, np.float32), np.full(4, 7, np.uint8), np.full(4, 7, np.int32)
    for module in (ops, oracle):
        refuse(lambda p, module=module: module.chunk_max(None, grad, spans, p), positions, match=match)
        refuse(lambda i, module=module: module.chunk_indices(np.zeros(4, np.uint8), spans, 10, i), indices,
               match=match)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_bins_of_spans_without_zeros(ops, rng, dtype, has_memory):
    """In a bin of zeros everything reaches the peak; so may a zero of a gradient that the memory cancels."""
    for n in (0, 17, 6000):
        grad = with_specials(rng, vector(rng, n, dtype))
        grad[n // 3 : n // 2] = 0
        memory = np.where(rng.random(n) < 0.3, -grad, 0).astype(dtype) if has_memory else None
        spans = [(start, stop) for start, stop, _ in some_spans(rng, n)]
        for length in (1, 7, 50):
            found = ops.bin_select(memory, grad, spans, length, zeros=False)
            assert_same(found, oracle.bin_select(memory, grad, spans, length, zeros=False))
            everything = oracle.bin_select(memory, grad, spans, length)
            u = grad if memory is None else memory + grad
            assert_same(found, everything[u[everything] != 0])


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", REALS)
def test_unpack_of_a_sparse_vector(ops, rng, dtype, index):
    for n in (0, 17, 30_000):
        indices = np.flatnonzero(rng.random(n) < 0.1).astype(index)
        values = with_specials(rng, vector(rng, indices.size, dtype))
        for other in (dtype, np.float16):  # of another type they are copied one by one
            arrays = [np.full(stop - start, 7, other) for start, stop, _ in some_spans(rng, n)]
            arrays.append(np.full((1, n - sum(one.size for one in arrays)), 7, other))
            expected = [one.copy() for one in arrays]
            ops.unpack_sparse(indices, values, arrays)
            oracle.unpack_sparse(indices, values, expected)
            for one, wanted in zip(arrays, expected, strict=True):
                assert_same(one, wanted)


def test_unpack_of_a_sparse_vector_refuses(ops):
    arrays, values = [np.ones(3, np.float32), np.ones(4, np.float32)], np.ones(2, np.float32)
    refuse(lambda v, *to: ops.unpack_sparse(np.int32([3, 7]), v, list(to)), values, *arrays,
           match=r"indices must be in \[0, 7\), got 7")
    refuse(lambda v, *to: ops.unpack_sparse(np.int32([3]), v, list(to)), values, *arrays,
           match="values must have 1 elements, got 2")


@pytest.mark.parametrize("dtype", [np.float16, *REALS])
def test_pack_and_unpack(ops, rng, dtype):
    shapes = [(3, 5), (), (0,), (4097,), (1,), (2, 0, 3), (64, 3, 3, 3), (9000,)]
    arrays = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]
    total = sum(array.size for array in arrays)
    flat = np.full(total, 7, dtype)
    ops.pack(arrays, flat)
    assert_same(flat, np.concatenate([array.reshape(-1) for array in arrays]))
    fresh = vector(rng, total, dtype)
    ops.unpack(fresh, arrays)
    assert_same(np.concatenate([array.reshape(-1) for array in arrays]), fresh)


def test_pack_converts(ops, rng):
    arrays = [rng.standard_normal(10).astype(np.float16), rng.standard_normal((2, 3)).astype(np.float16)]
    flat = np.zeros(16, np.float32)
    ops.pack(arrays, flat)
    np.testing.assert_array_equal(flat[10:].reshape(2, 3), arrays[1])


def test_pack_refuses_another_length(ops):
    arrays = [np.ones(3, np.float32), np.ones(4, np.float32)]
    refuse(lambda flat: ops.pack(arrays, flat), np.zeros(8, np.float32), match="flat must have 7 elements, got 8")
    refuse(lambda flat: ops.unpack(flat, arrays), np.zeros(6, np.float32), match="flat must have 7 elements, got 6")


# ---- what only kernels do

@pytest.mark.parametrize("dtype", REALS)
def test_arrays_that_do_not_begin_at_16_bytes(emulated_cuda, rng, dtype):
    """Packs of 16 bytes where all arrays allow it, single elements where one does not: the same bits."""
    n = 4501
    for shift in (0, 1, 3):
        buffers = [with_specials(rng, vector(rng, n + 3, dtype)) for _ in range(3)]
        memory, grad, sent = (buffer[k : k + n] for buffer, k in zip(buffers, (shift, 0, 1), strict=True))
        positions, expected = np.zeros((2, -(-n // 112)), np.uint8)
        emulated_cuda.chunk_max(memory, grad, [(0, grad.size, 112)], positions)
        oracle.chunk_max(memory, grad, [(0, grad.size, 112)], expected)
        assert_same(positions, expected)
        indices = emulated_cuda.top_k(memory, grad, [(0, grad.size)], [77])
        assert_same(indices, oracle.top_k(memory, grad, [(0, grad.size)], [77]))
        updated = memory.copy()
        emulated_cuda.masked_update(memory, grad, indices, sent[:77], 0.3)
        oracle.masked_update(updated, grad, indices, sent[:77], 0.3)
        assert_same(memory, updated)
        assert emulated_cuda.count_nonfinite(grad) == oracle.count_nonfinite(grad)


@pytest.mark.parametrize("share", [0.001, 1.0])
def test_a_cut_over_many_tiles(emulated_cuda, rng, share):
    """Tiles learn from the boards of those before them; a list longer than guessed takes a second pass."""
    n = 40 * cuda_runtime.TILE_BYTES // 8 + 5  # doubles: more tiles than a warp looks at together
    x = np.where(rng.random(n) < share, rng.choice([1.0, -2.0, 3.0], n), 0.5)
    assert_same(emulated_cuda.threshold(None, x, [(0, x.size)], [1.0])[0],
                oracle.threshold(None, x, [(0, x.size)], [1.0])[0])
    k = int(share * n / 2)
    assert_same(emulated_cuda.top_k(None, x, [(0, x.size)], [k]), oracle.top_k(None, x, [(0, x.size)], [k]))


def test_the_digits_of_the_kth_largest(emulated_cuda, rng):
    """Equal bits, equal numbers, numbers in few digits: each pass chooses rightly."""
    for x in (np.full(900, 3.0), rng.integers(-3, 4, 900), rng.standard_normal(900) * 1e-3):
        for k in (1, 449, 900):
            grad = x.astype(np.float32)
            assert_same(emulated_cuda.top_k(None, grad, [(0, grad.size)], [k]),
                        oracle.top_k(None, grad, [(0, grad.size)], [k]))
