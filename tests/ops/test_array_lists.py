"""Compiled passes over lists of arrays: the facts they compare, and copies into one vector and back."""

import weakref

import numpy as np
import pytest

from mpicomp.errors import InvalidArgument
from mpicomp.ops import array_lists, cpu, oracle
from mpicomp.ops.array_lists import ArrayFacts, ArrayList, adjacent, any_overlap, derived

rng = np.random.default_rng()
SHAPES = [(3, 4), (), (0, 2), (70_000,), (5,)]
TOTAL = 12 + 1 + 0 + 70_000 + 5


def some(dtype=np.float32):
    return [rng.standard_normal(shape).astype(dtype) if shape else np.array(1.5, dtype) for shape in SHAPES]


def test_facts_hold_for_arrays_of_the_same_shapes_and_dtype():
    facts = ArrayFacts(some())
    assert facts.hold(some()) and facts.hold(some(), written=True)


@pytest.mark.parametrize("change", [
    lambda arrays: arrays[:-1],
    lambda arrays: arrays[::-1],
    lambda arrays: [arrays[0].T, *arrays[1:]],
    lambda arrays: [arrays[0].astype(np.float64), *arrays[1:]],
    lambda arrays: [arrays[0].astype(">f4"), *arrays[1:]],
    lambda arrays: [*arrays[:-1], np.zeros(10, np.float32)[::2]],
    lambda arrays: [*arrays[:-1], np.zeros(21, np.uint8)[1:].view(np.float32)],
    lambda arrays: [np.asmatrix(arrays[0]), *arrays[1:]],
    lambda arrays: [*arrays[:-1], arrays[-1].tolist()],
    lambda arrays: [None] * len(arrays),
], ids=["fewer", "reordered", "transposed", "dtype", "byte order", "strided", "misaligned", "subclass", "list", "None"])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_facts_do_not_hold_for_other_arrays(change):
    assert not ArrayFacts(some()).hold(change(some()))


def test_facts_notice_read_only_and_resized_arrays():
    arrays = some()
    facts = ArrayFacts(arrays)
    arrays[0].flags.writeable = False
    assert facts.hold(arrays) and not facts.hold(arrays, written=True)
    arrays[4].resize(6, refcheck=False)
    assert not facts.hold(arrays)


def test_facts_of_other_libraries_arrays_hold_for_none():
    assert not ArrayFacts([*some(), object()]).hold(some())


class OnDevice:
    """An array of a device, as far as facts look at it."""

    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize("compiled", [True, False])
def test_facts_of_a_devices_arrays_hold_for_these_alone(compiled, monkeypatch):
    monkeypatch.setattr(array_lists, "AVAILABLE", compiled and array_lists.AVAILABLE)
    arrays = [OnDevice(3, 4), OnDevice(), OnDevice(5)]
    facts = ArrayFacts(arrays)
    assert facts.hold(list(arrays)) and facts.hold(arrays, written=True)
    assert not facts.hold(arrays[:-1]) and not facts.hold(arrays[::-1])
    assert not facts.hold([*arrays[:-1], OnDevice(5)]), "another array may lie elsewhere"
    arrays[0].shape = (4, 3)
    assert not facts.hold(arrays)


def test_results_are_kept_as_long_as_the_same_arrays_come_again():
    arrays, made = [OnDevice(3), OnDevice(5)], []
    facts = ArrayFacts(arrays)
    for _ in range(3):
        known = facts.listed(list(arrays))
        assert isinstance(known, ArrayList)
        assert derived(known, "key", lambda: made.append(0)) is None
        assert derived(known.chosen([1]), "key", lambda: made.append(1)) is None
    assert made == [0, 1]
    derived(list(arrays), "key", lambda: made.append(2))  # a plain list keeps nothing
    assert made == [0, 1, 2]
    assert facts.listed([arrays[0], OnDevice(5)]) is None


def test_facts_keep_no_array_alive():
    arrays = [OnDevice(3)]
    facts = ArrayFacts(arrays)
    facts.listed(list(arrays))
    gone = weakref.ref(arrays.pop())
    assert gone() is None and not facts.hold([OnDevice(3)])


@pytest.mark.parametrize("ops", [cpu, oracle], ids=["cpu", "oracle"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_are_packed_and_unpacked(ops, dtype):
    arrays, flat = some(dtype), np.empty(TOTAL, np.float32)
    ops.pack(arrays, flat)
    assert flat.tobytes() == np.concatenate([one.ravel() for one in arrays]).astype(np.float32).tobytes()
    back = [np.empty_like(one) for one in arrays]
    ops.unpack(flat, back)
    for one, array in zip(back, arrays, strict=True):
        assert one.tobytes() == array.astype(np.float32).astype(dtype).tobytes()


def test_long_vectors_are_packed_and_unpacked():
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (1, 3 << 20, 17, 1 << 20)]
    flat = np.empty(sum(one.size for one in arrays), np.float32)
    cpu.pack(arrays, flat)
    assert flat.tobytes() == np.concatenate(arrays).tobytes()
    back = [np.empty_like(one) for one in arrays]
    cpu.unpack(flat, back)
    assert all(map(np.array_equal, back, arrays))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_vectors_are_unpacked_as_the_oracle_does(index, dtype):
    for k in (0, 1, 500, TOTAL):
        indices = np.sort(rng.choice(TOTAL, k, replace=False)).astype(index)
        values = rng.standard_normal(k).astype(dtype)
        found, expected = some(dtype), some(dtype)
        cpu.unpack_sparse(indices, values, found)
        oracle.unpack_sparse(indices, values, expected)
        assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [-1, 2], [0, TOTAL]])
def test_invalid_indices_write_nothing(indices):
    arrays = some()
    before = [one.copy() for one in arrays]
    with pytest.raises(InvalidArgument):
        cpu.unpack_sparse(np.array(indices, np.int32), np.ones(2, np.float32), arrays)
    assert all(map(np.array_equal, arrays, before))


@pytest.mark.parametrize("ops", [cpu, oracle], ids=["cpu", "oracle"])
def test_vectors_of_another_length_are_refused(ops):
    with pytest.raises(InvalidArgument, match=f"flat must have {TOTAL} elements"):
        ops.pack(some(), np.empty(TOTAL + 1, np.float32))
    with pytest.raises(InvalidArgument, match=f"flat must have {TOTAL} elements"):
        ops.unpack(np.empty(TOTAL - 1, np.float32), some())


def test_adjacent_arrays_are_views_of_one_base():
    base = np.zeros(20, np.float32)
    views, starts = [base[3:5], base[5:5], base[5:9].reshape(2, 2)], [0, 2, 2]
    assert adjacent(views, starts)
    assert not adjacent(views, [0, 2, 3])
    assert not adjacent([views[0], np.zeros(4, np.float32)], [0, 2])
    assert not adjacent([base], [0])  # a base is no view
    assert not adjacent([base[5:5]], [0])


def test_overlaps_are_found():
    base = np.zeros(20, np.float32)
    assert any_overlap([np.zeros(3), base[3:5]], base[4:8])
    assert not any_overlap([np.zeros(3), base[3:5]], base[5:8])
