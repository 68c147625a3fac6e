"""Vectors of 2^33 elements: what the launchers ask for, and the kernels' arithmetic at the end of such a vector.

The vectors are address space without memory behind it: only pages that are touched take some.
"""

from __future__ import annotations

import mmap
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from arrays import assert_same, vector

from mpicomp.ops import gpu, oracle
from mpicomp.ops.gpu import collect, cuda_runtime
from mpicomp.ops.gpu.quantise import GroupBounds

pytestmark = pytest.mark.emulation
N = 2**33
SIZES = (2**20, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**32 + 5, N)
MOST_BLOCKS = 2**31 - 1  # of a grid in CUDA
THREADS = cuda_runtime.THREADS
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on


class Huge:
    """An array that is only its shape."""

    ndim, flags = 1, SimpleNamespace(c_contiguous=True)

    def __init__(self, n, dtype=np.float32):
        self.size, self.dtype = int(n), np.dtype(dtype)

    def __getitem__(self, key):
        if isinstance(key, int):  # the last of running sums of ones
            return self.size
        return Huge(len(range(*key.indices(self.size))), self.dtype)

    def __setitem__(self, key, value):
        pass

    def __add__(self, other):
        return self

    __sub__ = __truediv__ = __floordiv__ = __add__

    def view(self, dtype):
        return Huge(self.size, dtype)

    def reshape(self, rows, _):
        return [Huge(self.size // rows, self.dtype)] * rows


class Functions:
    """CuPy's that the launchers call."""

    empty = zeros = Huge

    def diff(self, x):
        return Huge(x.size - 1, x.dtype)

    def concatenate(self, arrays):
        return Huge(sum(x.size for x in arrays), arrays[0].dtype)

    def sqrt(self, x):
        return x

    def maximum(self, x, y):
        return x

    def cumsum(self, x):
        return x

    def asarray(self, x):
        return Huge(x.size, x.dtype)


class Recorder(cuda_runtime.Runtime):
    """Notes what is launched; its arrays have no memory."""

    xp = Functions()

    def __init__(self):
        self.launches = []

    def device(self, array):
        return nullcontext()

    def to_host(self, array):
        return np.zeros(array.size, array.dtype)

    def address(self, array):
        return 256

    def current_device(self):
        return 0

    def stream(self):
        return 0

    def kernel(self, family, name):
        assert name in cuda_runtime.KERNELS[family]
        return lambda grid, block, args: self.launches.append((name.partition("<")[0], grid, block, args))


def calls(n):
    """Operations over n elements, each with the number that its kernel must be told."""
    x, y, z, k = Huge(n), Huge(n), Huge(n), n // 100
    values, indices = Huge(k), Huge(k, oracle.index_dtype(n))
    positions = Huge(-(-n // 112), np.uint8)
    spans = [(0, n // 2, 112), (n // 2, n, 112)]
    rows, chunked = [(0, n // 3), (n // 3, n)], [(0, n // 3, 64), (n // 3, n, 64)]
    matrices = [(1, 1 + n // 8 * 7, 7, 4)], Huge(n // 8 * 4), Huge(28)
    return {
        "add": (lambda: gpu.add(x, y), n),
        "scale": (lambda: gpu.scale(x, 0.5), n),
        "narrow": (lambda: gpu.narrow(Huge(n, np.uint16), x, "float16"), n),
        "axpby": (lambda: gpu.axpby(z, 1, x, 1, y), n),
        "dense_update": (lambda: gpu.dense_update(x, y, z, 0.1), n),
        "chunk_max": (lambda: gpu.chunk_max(x, y, [(0, y.size, 112)], positions), n),
        "chunk_max of spans": (lambda: gpu.chunk_max(x, y, spans, Huge(gpu_chunks(spans), np.uint8)), None),
        "chunk_indices": (lambda: gpu.chunk_indices(positions, [(0, n, 112)], n, Huge(positions.size, np.int64)), n),
        "threshold": (lambda: gpu.threshold(x, y, [(0, y.size)], [1.0])[0], n),
        "top_k": (lambda: gpu.top_k(x, y, [(0, y.size)], [k]), n),
        "top_k of spans": (lambda: gpu.top_k(x, y, [(0, n // 2), (n // 2, n)], [k, k]), None),
        "threshold of spans": (lambda: gpu.threshold(x, y, [(0, n // 2), (n // 2, n)], [1.0, 2.0]), None),
        "bin_select": (lambda: gpu.bin_select(x, y, [(0, n // 2), (n // 2, n)], 500), 500),
        "sample": (lambda: gpu.sample(x, y, [(5, 100, k - 1), (n - 1, 1, 1)], values), 2),
        "random_strata": (lambda: gpu.random_strata(n, [(0, 9), (9, n)], [9, k], gpu.Key(1, 2, 3)), 2),
        "project": (lambda: gpu.project(x, y, *matrices), None),
        "gather": (lambda: gpu.gather(x, y, indices, values), k),
        "gather_counted": (lambda: gpu.gather_counted(x, y, indices, values), k),
        "add_lists": (lambda: gpu.add_lists([indices, Huge(9, indices.dtype)], [values, Huge(9)], n), n),
        "restrict": (lambda: gpu.restrict([Huge(9, indices.dtype)], [Huge(9)], indices, [True]), k),
        "unpack_sparse": (lambda: gpu.unpack_sparse(indices, values, [Huge(n // 3), Huge(n - n // 3)]), n),
        "scatter": (lambda: gpu.scatter(x, indices, values), k),
        "masked_update": (lambda: gpu.masked_update(x, y, indices, values, 0.1), n),
        "count_nonfinite": (lambda: gpu.count_nonfinite(x), n),
        "squared_norm": (lambda: gpu.squared_norm(x), n),
        "moments": (lambda: gpu.moments(x, y, [(0, y.size)], 0.5)[0], 1),
        "moments of spans": (lambda: gpu.moments(x, y, [(0, n // 2), (n // 2, n)], 0.5), 2),
        "select_normal": (lambda: gpu.select_normal(x, y, rows, [k, n // 2]), 2),
        "select_exponential": (lambda: gpu.select_exponential(x, y, rows, [k, n // 2]), 2),
        "select_sampled": (lambda: gpu.select_sampled(x, y, rows, [(5, 9, n // 30), (n // 2, 9, n // 30)], [k, k]), 2),
        "project_rows": (lambda: gpu.project_rows(x, y, rows, 64, 4, 1, Huge(4 * gpu_chunks(chunked))), 64),
        "expand_rows": (lambda: gpu.expand_rows(Huge(k, np.int64), 64, rows, n), k),
        "pack": (lambda: gpu.pack([Huge(n // 3), Huge(n - n // 3)], x), n),
        "pack_signs": (lambda: gpu.pack_signs(x, Huge((n + 7) // 8, np.uint8)), n),
        "group_norms": (lambda: gpu.group_norms(x, groups_of(n, n), "l2", y), n),
        "group_norms max": (lambda: gpu.group_norms(x, groups_of(n, n // 4), "max", Huge(n // 4)), n // 4),
        "group_means": (lambda: gpu.group_means(x, groups_of(n, 1), Huge(1), Huge(1)), 1),
        "quantise": (lambda: gpu.quantise(x, 0.1, n, gpu.Key(1, 2, 3), Huge(n, np.int8)), n),
        "uniform": (lambda: gpu.uniform(n, n, gpu.Key(1, 2, 3)), n),
    }


def groups_of(n, count):
    """Bounds of so many groups, known to be right: of one, all pieces are its own."""
    bounds, pieces = Huge(count + 1, np.int64), n // cuda_runtime.GROUP_PIECE if count == 1 else 0
    team = THREADS if count == 1 else 1
    return GroupBounds(bounds, n, count, team, pieces, Huge(count + 1, np.int64))


def gpu_chunks(spans):
    return sum(-(-(stop - start) // chunk) for start, stop, chunk in spans)


@pytest.mark.parametrize("name", calls(SIZES[0]))
def test_grids_of_any_size_are_legal_and_counts_are_64_bits(name):
    for n in SIZES:
        recorder = Recorder()
        previous = cuda_runtime.use(recorder)
        try:
            call, told = calls(n)[name]
            call()
        finally:
            cuda_runtime.use(previous)
        assert recorder.launches
        for kernel, (blocks,), block, args in recorder.launches:
            assert block == (THREADS,)
            assert 1 <= blocks <= MOST_BLOCKS, kernel
            assert all(isinstance(arg, np.generic | Huge) for arg in args), kernel
        counts = [int(arg) for *_, args in recorder.launches for arg in args if isinstance(arg, np.int64)]
        assert told is None or told in counts, f"{name} tells no kernel of {told} elements as 64 bits: {counts}"


def test_tiles_of_a_cut_cover_the_vector_once():
    for itemsize in (4, 8):
        for n in SIZES:
            tiles = -(-n * itemsize // cuda_runtime.TILE_BYTES)
            assert (tiles - 1) * cuda_runtime.TILE_BYTES < n * itemsize <= tiles * cuda_runtime.TILE_BYTES
            assert tiles <= MOST_BLOCKS
            assert collect.board_bytes(tiles) < 2**31


# ---- the kernels at the end of the vector

@pytest.fixture
def sparse():
    """``sparse(n, dtype)``: a vector of zeros, its memory taken when touched; given back at the end."""
    maps = []

    def make(n, dtype=np.float32):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        maps.append(mmap.mmap(-1, n * np.dtype(dtype).itemsize, flags=flags))
        return np.frombuffer(maps[-1], dtype)

    try:
        make(N)
    except (OSError, ValueError) as error:
        pytest.skip(f"no address space for 2^33 elements here: {error}")
    yield make


def run(runtime, family, name, blocks, args, first=None, most=2):
    """Some blocks of a grid: by default its last ones."""
    with runtime.window(family, blocks - most if first is None else first, most):
        runtime.kernel(family, name)((blocks,), (THREADS,), args)


@pytest.fixture
def runtime(emulated_cuda):
    """Runs parts of a grid."""
    return cuda_runtime._runtime


TAIL = 4000


def tail(rng, sparse, n=N):
    """A vector whose last elements are fresh numbers, and these."""
    whole, own = sparse(n), vector(rng, TAIL, np.float32)
    whole[-TAIL:] = own
    return whole, own


def test_elementwise_at_the_end(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    blocks = N // 4 // THREADS  # a pack of 16 bytes each: no thread takes a second one
    run(runtime, "reduce", "scale<float>", blocks, (whole, np.int64(N), np.float32(3)))
    changed = 2 * THREADS * 4
    assert_same(whole[-changed:], own[-changed:] * np.float32(3))
    assert_same(whole[-TAIL:-changed], own[:-changed])


def test_union_at_the_end(runtime, sparse):
    lists = [np.int64([5, N - 9000, N - 1]), np.int64([N - 9000, N - 2])]
    values = [np.float32([1, 2, 3]), np.float32([4, 5])]
    table = np.array([0, 3, 5, *(one.ctypes.data for one in (*lists, *values))])
    tiles, words, counts = 1024, sparse(N // 32, np.uint32), np.zeros(1025, np.uint64)
    scalars = np.int64(N // tiles), np.int64(tiles), words, counts
    args = table, np.int64(2), np.int64(N), np.int32(0), *scalars
    run(runtime, "union", "mark_lists<long long>", 1, args, first=0)
    assert (counts[0], counts[tiles - 1], counts[tiles], counts.sum()) == (1, 3, 0, 4)
    indices, sums = np.zeros(4, np.int64), np.zeros(4, np.float32)
    args = table, np.int64(2), np.int64(N), *scalars, indices, sums
    run(runtime, "union", "write_union<float, long long>", tiles, args, most=1)
    assert_same(indices, np.int64([0, N - 9000, N - 2, N - 1]))  # the first is another block's
    assert_same(sums, np.float32([0, 6, 5, 3]))


def test_chunks_at_the_end(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    chunk, lanes = 112, 32
    chunks = -(-N // chunk)
    positions = sparse(chunks, np.uint8)
    blocks = -(-chunks * lanes // THREADS)
    scalars = np.int64(N), np.int32(chunk), np.int32(lanes)
    run(runtime, "chunk_max", "chunk_max<float, unsigned char>", blocks, (np.uintp(0), whole, *scalars, positions))
    for j in range(chunks - 5, chunks):
        begin = j * chunk - (N - TAIL)
        assert positions[j] == np.argmax(np.abs(own[begin : begin + chunk]))
    indices, invalid = sparse(chunks, np.int64), np.zeros(1, np.int32)
    blocks = -(-chunks // THREADS)
    args = positions, np.int64(chunks), np.int32(chunk), np.int64(N), indices, invalid
    run(runtime, "chunk_max", "chunk_indices<unsigned char, long long>", blocks, args)
    j = np.arange(chunks - 5, chunks)
    assert_same(indices[-5:], j * chunk + positions[-5:])
    assert invalid[0] == 0


def test_updates_at_the_end(runtime, sparse, rng):
    memory, own = tail(rng, sparse)
    grad, own_grad = tail(rng, sparse)
    indices = np.sort(rng.choice(TAIL, 50, replace=False)).astype(np.int64)
    sent, expected = vector(rng, 50, np.float32), own.copy()
    blocks = N // cuda_runtime.PIECE
    args = memory, grad, np.int64(N), indices + (N - TAIL), sent, np.int64(50), np.float32(0.5)
    run(runtime, "update", "masked_update<float, long long>", blocks, args, most=1)
    oracle.masked_update(expected, own_grad, indices, sent, 0.5)
    assert_same(memory[-TAIL:], expected)


def test_gather_and_measures_at_the_end(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    indices = rng.permutation(TAIL)[:99].astype(np.int64)
    values = np.zeros(99, np.float32)
    gpu.gather(None, whole, indices + (N - TAIL), values)
    assert_same(values, own[indices])
    gpu.scatter(whole, indices + (N - TAIL), values * 2)
    assert_same(whole[-TAIL:][indices], values * 2)
    whole[-7] = np.inf
    found = np.zeros(2, np.uint64)
    run(runtime, "measure", "count_nonfinite<float>", N // 4 // THREADS, (whole, np.int64(N), found))
    assert found.tolist() == [1, 7]


def test_a_search_at_the_end(runtime, sparse, rng):
    """The last pieces of one span: what passes there is counted, kept behind the middle, and found there again."""
    whole, own = tail(rng, sparse)
    pieces, piece = N // cuda_runtime.MOMENTS_PIECE, cuda_runtime.MOMENTS_PIECE
    table, goals = np.array([0, pieces, 0, N]), np.array([1e9, 3.0])
    kept, passed, sums = sparse(N // 2), sparse(8 * pieces, np.int32), sparse(3 * pieces, np.float64)
    known = np.zeros(6 + 10, np.int64)
    known[1], known[2], known[4] = *np.array([1.5]).view(np.int64), N, *np.array([np.nan]).view(np.int64)
    args = np.uintp(0), whole, table, np.int64(1), goals
    for first in ("true", "false"):
        run(runtime, "search", f"fit_stage<float, {first}>", pieces, (*args, kept, passed, sums, known), most=1)
        passing = np.abs(own[-piece:])[np.abs(own[-piece:]) >= 1.5].astype(np.float64)
        assert (sums[pieces - 1], sums[2 * pieces - 1]) == (passing.size, pytest.approx(passing.sum(), rel=1e-12))
    assert passed[-8:].sum() == passing.size
    assert np.count_nonzero(kept[-piece // 2 :]) == passing.size
    run(runtime, "search", "correct_thresholds<float>", pieces, (*args, known[6:], known), most=1)
    assert known[6] == passing.size
    run(runtime, "search", "first_threshold<float, true>", pieces, (*args, sums, known), most=1)
    assert sums[pieces - 1] == pytest.approx(own[-piece:].astype(np.float64).sum(), rel=1e-12, abs=1e-10)
    assert known[3] == 4  # pieces that were done, one a launch


def test_moments_at_the_end(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    pieces = N // cuda_runtime.MOMENTS_PIECE
    table, sums = np.array([0, pieces, 0, N]), sparse(4 * pieces, np.float64)
    args = np.uintp(0), whole, table, np.int64(1), np.int32(0), sums
    run(runtime, "moments", "moments<float>", pieces, args, most=1)
    _, *expected = oracle.moments(None, own, [(0, own.size)], 0.0)[0]
    count, *found = sums.reshape(4, pieces)[:, -1]
    assert count == cuda_runtime.MOMENTS_PIECE
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)
    assert not sums.reshape(4, pieces)[:, -2].any()


def test_short_groups_at_the_end(runtime, sparse, rng):
    """Groups of four, a thread each."""
    whole, own = tail(rng, sparse)
    count, last = N // 4, 2 * THREADS
    own, edges = own[-4 * last :], np.arange(N - 4 * last, N + 1, 4)
    bounds, starts = sparse(count + 1, np.int64), sparse(count + 1, np.int64)
    bounds[-last - 1 :] = edges
    means, maxima, expected = (sparse(count), sparse(count)), sparse(count, np.int32), np.zeros(last, np.float32)
    groups, blocks = (whole, bounds, starts, np.int64(count), np.int32(1)), count // THREADS
    no_pieces = np.int64(0), np.uintp(0), np.float64(0)
    run(runtime, "norms", "sum_groups<float, Means>", blocks, (*groups, *no_pieces, *means))
    run(runtime, "norms", "group_maxima<float>", blocks, (*groups, maxima))
    oracle.group_norms(own, edges - edges[0], "max", expected)
    assert_same(maxima[-last:].view(np.float32), expected)
    expected = np.zeros(last, np.float32), np.zeros(last, np.float32)
    oracle.group_means(own, edges - edges[0], *expected)
    np.testing.assert_allclose([one[-last:] for one in means], expected, rtol=1e-6)


def test_a_long_group_at_the_end(runtime, sparse, rng):
    """Its last piece."""
    whole, own = tail(rng, sparse)
    pieces = N // cuda_runtime.GROUP_PIECE
    bounds, starts, sums = np.array([0, N]), np.array([0, pieces]), sparse(3 * pieces, np.float64)
    args = whole, bounds, starts, np.int64(1), np.int64(pieces), sums
    run(runtime, "norms", "sum_pieces<float, Signs>", pieces, args, most=1)
    found = sums.reshape(3, pieces)[:, -1]
    negative = np.signbit(own)
    np.testing.assert_allclose(found[:2], [own[negative].sum(dtype=float), own[~negative].sum(dtype=float)], rtol=1e-12)
    assert found[2] == negative.sum()


def test_rows_at_the_end(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    row, width, seed = 64, 3, int(rng.integers(2**63))
    rows = N // row
    table, sketch = (np.array([0, rows, 0, N]), np.int64(1), np.int64(row)), sparse(rows * width)
    blocks = rows * cuda_runtime.WARP // THREADS
    args = np.uintp(0), whole, *table, np.int32(width), np.uint64(seed), sketch
    run(runtime, "sketch", "project_rows<float>", blocks, args)
    changed = 2 * THREADS // cuda_runtime.WARP
    expected = np.zeros(changed * width, np.float32)
    oracle.project_rows(None, own[-changed * row :], [(0, own[-changed * row :].size)], row, width, seed, expected)
    np.testing.assert_allclose(sketch[-expected.size :], expected, rtol=0, atol=1e-4)
    last, lengths, indices = np.int32([rows - 5, rows - 1]), np.zeros(2, np.int64), np.zeros(2 * row, np.int64)
    runtime.kernel("sketch", "row_lengths<int>")((1,), (THREADS,), (last, np.int64(2), *table, lengths))
    args = last, np.int64(2), *table, np.cumsum(lengths), indices
    runtime.kernel("sketch", "write_rows<int, long long>")((1,), (THREADS,), args)
    assert_same(indices, np.concatenate([np.arange(N - 5 * row, N - 4 * row), np.arange(N - row, N)]))


def told_until_the_last(rng, tiles):
    """Board before the last tile starts, with a count or a running sum per tile; and the sum over all earlier tiles."""
    board = np.zeros(collect.board_bytes(tiles), np.uint8)
    board[:4].view(np.int32)[0] = tiles - 1  # the ticket: the next tile is the last
    words = board[16:].view(np.uint64).reshape(2, tiles)  # of those above, and of those equal
    own, running = np.uint64(1 << 62), np.uint64(2 << 62)
    first = int(rng.integers(2, 60))  # so many tiles back, one knows its sum, above 2^32
    words[:, tiles - 100 : tiles - 1 - first] = own + 10**6  # not for it
    counts = np.uint64([[2**32 + 5], [7]]), rng.integers(0, 100, (2, first - 1)).astype(np.uint64)
    words[:, tiles - 1 - first : tiles - first] = running + counts[0]
    words[:, tiles - first : tiles - 1] = own + counts[1]
    return board, np.hstack(counts).sum(axis=1).astype(np.int64)


def test_the_last_tile_of_a_cut(runtime, sparse, rng):
    whole, own = tail(rng, sparse)
    tiles = N * 4 // cuda_runtime.TILE_BYTES
    board, (before, _) = told_until_the_last(rng, tiles)
    room, key = before + TAIL, np.float32(1).view(np.int32)
    indices, total = sparse(int(room), np.int64), np.zeros(1, np.int64)
    scalars = np.int64(N), np.int32(key), np.uintp(0), np.uintp(0), np.int64(0)
    args = np.uintp(0), whole, *scalars, board, np.int64(tiles), np.int64(room), indices, total
    runtime.kernel("collect", "select<float, long long, false>")((1,), (THREADS,), args)
    expected = oracle.threshold(None, own, [(0, own.size)], [1.0])[0].astype(np.int64) + (N - TAIL)
    assert total[0] == before + expected.size
    assert_same(indices[before : total[0]], expected)


def test_the_last_of_the_largest(runtime, sparse, rng):
    """The last tile of ``keep`` and of ``select_largest``: the cut admits all above 1, and one more that equals it."""
    whole, own = tail(rng, sparse)
    tiles, no_spans = N * 4 // cuda_runtime.TILE_BYTES, (np.uintp(0), np.int64(0))
    expected = oracle.threshold(None, own, [(0, own.size)], [1.0])[0].astype(np.int64) + (N - TAIL)
    board, (before, _) = told_until_the_last(rng, tiles)
    room, guesses, found = before + TAIL, np.array([np.float32(1).view(np.int32)], np.int64), np.zeros(1, np.int64)
    kept, at = sparse(int(room)), sparse(int(room), np.int64)
    space, candidates = (board, np.int64(tiles)), (np.int64(room), np.uintp(0), kept, at, found)
    args = np.uintp(0), whole, np.int64(N), guesses, *no_spans, *space, *candidates
    runtime.kernel("collect", "keep<float, long long, false>")((1,), (THREADS,), args)
    assert found[0] == before + expected.size
    assert_same(at[before : found[0]], expected)
    assert_same(kept[before : found[0]], np.abs(whole[expected]))

    board, (above, equal) = told_until_the_last(rng, tiles)
    k = above + equal + TAIL
    indices, cut = sparse(int(k), np.int64), np.array([guesses[0], equal + 1])
    args = np.uintp(0), whole, np.int64(N), cut, *no_spans, board, np.int64(tiles), np.int64(k), indices
    nothing_kept = np.int64(0), *[np.uintp(0)] * 4
    runtime.kernel("collect", "select_largest<float, long long, false>")((1,), (THREADS,), (*args, *nothing_kept))
    ones = expected[np.abs(whole[expected]) == 1]
    expected = np.setdiff1d(expected, ones[1:])
    assert_same(indices[above + equal : above + equal + expected.size], expected)
    assert not indices[above + equal + expected.size :].any()


def test_a_guess_at_the_end(runtime, sparse):
    """One element of each of as many equal parts as the sample has: the last twelve are 1, 2, ... 12."""
    whole, part = sparse(N), N // cuda_runtime.SAMPLE
    whole[-12 * part :].reshape(12, part)[...] = np.arange(1, 13)[:, None]
    for wanted, expected in ((1, 12.0), (5, 8.0), (12, 1.0), (13, 0.0)):
        guesses = np.full(2, -1, np.int64)
        args = np.uintp(0), whole, np.int64(N), np.int64(wanted), np.int64(N), np.uintp(0), np.uintp(0), guesses
        runtime.kernel("top_k", "guess<float>")((1,), (THREADS,), args)
        assert guesses.tolist() == [np.float32(expected).view(np.int32), -1]
