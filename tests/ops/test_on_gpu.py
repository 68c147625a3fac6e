"""Copies to and from a GPU through which tests/gpu/gpu_check.py runs these tests; NumPy stands in for CuPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from arrays import assert_same, vector
from on_gpu import OnGPU

from mpicomp.errors import BufferRefused
from mpicomp.ops import oracle

pytestmark = pytest.mark.emulation


class OnHost(np.ndarray):
    """Array copied back from the device."""


def to_host(array):
    return np.array(array).view(OnHost)


@pytest.fixture
def there(emulated_cuda):
    """Operations on copies, so that a test detects a result that is not copied back."""
    return OnGPU(SimpleNamespace(asarray=np.array, asnumpy=to_host, empty=np.empty, ndarray=np.ndarray))


def test_results_and_written_arrays_come_back(there, rng):
    grad = vector(rng, 300, np.float32)
    positions, expected = np.zeros((2, 3), np.uint8)
    there.chunk_max(None, grad, [(0, grad.size, 112)], positions)
    oracle.chunk_max(None, grad, [(0, grad.size, 112)], expected)
    assert_same(positions, expected)
    assert_same(there.top_k(None, grad, [(0, grad.size)], [5]), oracle.top_k(None, grad, [(0, grad.size)], [5]))
    assert there.count_nonfinite(grad) == (0, -1)
    parts = [np.zeros(100, np.float32), np.zeros(200, np.float32)]
    there.unpack(grad, parts)
    assert_same(np.concatenate(parts), grad)


def test_what_lies_in_a_named_tuple_comes_back(there, rng):
    found = there.select_normal(None, vector(rng, 300, np.float32), [(0, 300)], [5])
    assert isinstance(found.indices, OnHost)
    assert found.counts == [found.indices.size]


def test_one_array_given_twice_is_one(there, rng):
    x, y, expected = vector(rng, 50, np.float32), vector(rng, 50, np.float32), np.empty(50, np.float32)
    oracle.axpby(expected, 2, x, 3, y)
    there.axpby(x, 2, x, 3, y)
    assert_same(x, expected)


def test_what_is_the_same_stays_the_same(there):
    """An array that an operation hands back, and an operation asked for twice; options are copied, too."""
    indices = np.int32([1, 5, 9])
    assert there.vouch(indices, n=10) is indices
    assert there.project is there.project
    assert there.project is not there.project_back


def test_strided_arrays_stay_strided(there):
    with pytest.raises(BufferRefused, match="strided"):
        there.scale(np.ones(10, np.float32)[::2], 2.0)
    assert there.PIECE > 1
