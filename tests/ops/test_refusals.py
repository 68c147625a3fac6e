"""Bad input: one clear error, and nothing is written."""

import numpy as np
import pytest

from mpicomp.errors import BufferRefused, InvalidArgument

N = 1000
F32 = np.float32


def ones(n=N, dtype=F32):
    return np.ones(n, dtype)


def refuse(call, *arrays, match, error=InvalidArgument):
    """``call(*arrays)`` raises, and leaves every array as it was."""
    before = [array.copy() for array in arrays]
    with pytest.raises(error, match=match):
        call(*arrays)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("bad", [-1, N, 2**31 - 1, -(2**31)])
def test_indices_outside(ops, bad):
    indices, values = np.int32([0, bad, 5]), np.zeros(3, F32)
    match = rf"indices must be in \[0, {N}\), got {bad}"
    refuse(lambda g, i, v: ops.gather(None, g, i, v), ones(), indices, values, match=match)
    refuse(lambda g, i, v: ops.gather_counted(None, g, i, v), ones(), indices, values, match=match)
    refuse(ops.scatter, ones(), indices, values, match=match)
    refuse(ops.scatter_add, ones(), indices, values, match=match)
    refuse(ops.clear, ones(), indices, match=match)
    refuse(lambda *a: ops.masked_update(*a, 1.0), 2 * ones(), ones(), indices, values, match=match)


@pytest.mark.parametrize("bad", [-1, N, 2**63 - 1, -(2**63), 2**32])
def test_wide_indices_outside(ops, bad):
    refuse(ops.clear, ones(), np.int64([0, bad]), match=f"got {bad}")


@pytest.mark.parametrize("indices", [[3, 2], [2, 2]])
def test_update_needs_ascending_indices(ops, indices):
    arrays = 2 * ones(), ones(), np.int32(indices), np.zeros(2, F32)
    refuse(lambda *a: ops.masked_update(*a, 1.0), *arrays, match="strictly ascending")


def test_an_index_of_an_empty_vector(ops):
    refuse(ops.clear, ones(0), np.int32([0]), match="got 0")


def test_lengths(ops):
    refuse(ops.add, ones(), ones(N - 1), match="src must have 1000 elements, got 999")
    refuse(lambda m, g: ops.top_k(m, g, [(0, g.size)], [1]), ones(3), ones(),
           match="memory must have 1000 elements, got 3")
    refuse(ops.scatter, ones(), np.int32([1]), ones(2), match="values must have 1 elements, got 2")
    positions = np.zeros(8, np.uint8)
    refuse(lambda g, p: ops.chunk_max(None, g, [(0, g.size, 112)], p), ones(), positions,
           match="must have 9 elements, got 8")


def test_dtypes(ops):
    refuse(ops.add, ones(), ones(dtype=np.float64), match="src must be of dtype float32, got float64")
    refuse(ops.add, ones(dtype=np.complex64), ones(), match="dst must be of dtype float32, .* got complex64")
    refuse(lambda g: ops.top_k(None, g, [(0, g.size)], [1]), ones(dtype=np.int32),
           match="grad must be of dtype float32, float64")
    refuse(ops.clear, ones(), ones(dtype=np.int16), match="indices must be of dtype int32, int64, got int16")
    positions = np.zeros(9, np.uint16)
    refuse(lambda g, p: ops.chunk_max(None, g, [(0, g.size, 112)], p), ones(), positions,
           match="must be of dtype uint8, got uint16")
    refuse(lambda d, s: ops.narrow(d, s, "float8"), ones(dtype=np.uint16), ones(), match="kind must be float16 or")


def test_shapes_and_strides(ops):
    refuse(ops.add, ones().reshape(10, 100), ones(), match="dst must have 1 dimension, got 2")
    refuse(ops.add, ones(2 * N)[::2], ones(), match="dst must be contiguous", error=BufferRefused)


def test_read_only_and_misaligned(cpu_ops):
    frozen = ones()
    frozen.flags.writeable = False
    refuse(cpu_ops.add, frozen, ones(), match="dst must be writable", error=BufferRefused)
    misaligned = np.zeros(4 * N + 1, np.uint8)[1:].view(F32)
    refuse(cpu_ops.add, ones(), misaligned, match="src must be aligned", error=BufferRefused)
    swapped = ones(dtype=">f4")
    refuse(cpu_ops.add, ones(), swapped, match="src must be of dtype float32, got >f4")


def test_update_refuses_an_overlap(cpu_ops):
    x, nothing = np.ones(N + 1, F32), np.zeros(0, np.int32)
    with pytest.raises(BufferRefused, match="memory and grad must not overlap"):
        cpu_ops.masked_update(x[1:], x[:-1], nothing, np.zeros(0, F32), 1.0)


@pytest.mark.parametrize("chunk", [0, -1, 65537])
def test_chunk(ops, chunk):
    match = rf"chunk must be in \[1, 65536\], got {chunk}"
    refuse(lambda g, p: ops.chunk_max(None, g, [(0, g.size, chunk)], p), ones(), np.zeros(9, np.uint8), match=match)


@pytest.mark.parametrize("lam", [-1.0, float("nan")])
def test_lam(ops, lam):
    refuse(lambda g: ops.threshold(None, g, [(0, g.size)], [lam])[0], ones(), match="lam must be a number >= 0, got")


@pytest.mark.parametrize("k", [-1, N + 1])
def test_k(ops, k):
    refuse(lambda g: ops.top_k(None, g, [(0, g.size)], [k]), ones(), match=rf"k must be in \[0, 1000\], got {k}")


@pytest.mark.parametrize("positions", [[112, 0, 0], [0, 0, 76]])
def test_positions_from_the_wire(ops, positions):
    call = lambda: ops.chunk_indices(np.uint8(positions), [(0, 300, 112)], 300, np.zeros(3, np.int32))  # noqa: E731
    with pytest.raises(InvalidArgument, match="positions must lie inside their chunks of 112 elements and below n"):
        call()
