"""Fields of the bench: spectra, lengths, and fields from files."""

from __future__ import annotations

import numpy as np
import pytest

from mpicomp.bench.fields import field, read_field
from mpicomp.bench.plan import FIELDS, Plan
from mpicomp.errors import InvalidArgument


def plan(data: str = "smooth", **given) -> Plan:
    return Plan(sizes=(4,), algorithms=("native",), bounds=(1e-3,), data=data, **given)


@pytest.mark.parametrize("data", FIELDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 1000, 1001])
def test_generated_fields(data, dtype, n):
    made = field(plan(data, dtype=dtype), n, 1, 3)
    assert (made.dtype.name, made.shape, made.flags.c_contiguous) == (dtype, (n,), True)
    assert np.isfinite(made).all()
    np.testing.assert_array_equal(made, field(plan(data, dtype=dtype), n, 1, 3))
    if n > 2:
        assert not np.array_equal(made, field(plan(data, dtype=dtype), n, 2, 3))
        assert not np.array_equal(made, field(plan(data, dtype=dtype, seed=2), n, 1, 3))


def test_turbulence_has_its_spectrum():
    """Energy of shells of wave numbers falls as k^-5/3, within the scatter of some hundred waves per shell."""
    side = 32
    made = field(plan("turbulence", dtype="float64", seed=np.random.default_rng().integers(2**31)), side**3, 0, 1)
    power = abs(np.fft.fftn(made.reshape((side,) * 3))) ** 2
    axes = np.meshgrid(*[np.fft.fftfreq(side, 1 / side)] * 3, indexing="ij")
    shell = np.rint(np.sqrt(sum(axis**2 for axis in axes))).astype(int)
    energy = np.bincount(shell.ravel(), power.ravel())
    k = np.arange(3, side // 2)
    slope = np.polyfit(np.log(k), np.log(energy[k]), 1)[0]
    assert -2.1 < slope < -1.3


def test_longer_fields_repeat_the_cube(monkeypatch):
    monkeypatch.setattr("mpicomp.bench.fields.LONGEST_SIDE", 4)
    made = field(plan("turbulence"), 100, 0, 1)
    np.testing.assert_array_equal(made[64:], made[:36])


def test_field_of_a_file_is_shifted(tmp_path):
    file = tmp_path / "x.npy"
    whole = np.arange(24, dtype=">f8").reshape(6, 2, 2)
    np.save(file, whole)
    made = field(plan(str(file), dtype="float64"), 24, 2, 3)
    np.testing.assert_array_equal(made, np.roll(whole, 4, axis=0).ravel())
    assert made.dtype.isnative
    np.testing.assert_array_equal(field(plan(str(file), dtype="float64"), 5, 0, 3), np.arange(5))
    np.save(file, np.asfortranarray(whole))
    np.testing.assert_array_equal(field(plan(str(file), dtype="float64"), 24, 0, 3), whole.ravel(order="F"))
    np.save(file, np.float64(3))
    np.testing.assert_array_equal(field(plan(str(file), dtype="float64"), 1, 1, 3), [3])


@pytest.mark.parametrize(
    ("array", "text"),
    [(np.arange(3), "must hold float32 or float64 for an error bound, got int64: convert it"),
     (np.zeros(3, complex), "must hold float32 or float64 .* got complex128"),
     (np.array(["a"]), "must hold float32 or float64"),
     (np.zeros(3), "holds float64: give --dtype float64"),
     (np.zeros((3, 0), np.float32), r"holds no elements: its shape is \(3, 0\)"),
     (np.zeros(3, np.float32), "holds 12 bytes, fewer than the size 16: give smaller sizes")],
)  # fmt: skip
def test_arrays_that_are_refused(tmp_path, array, text):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InvalidArgument, match=text):
        read_field(str(tmp_path / "x.npy"), "float32", 4)


def test_files_that_are_refused(tmp_path):
    file = tmp_path / "x.npy"
    for content in (b"", b"1 2 3", b"\x93NUMPY\x01\x00"):
        file.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"x\.npy holds no array of numbers: .*; write it with numpy\.save"):
            read_field(str(file), "float32")
    np.save(file, np.array([None]), allow_pickle=True)
    with pytest.raises(InvalidArgument, match="holds no array of numbers"):
        read_field(str(file), "float32")
    np.savez(tmp_path / "y", a=np.zeros(3))
    (tmp_path / "y.npz").rename(file)
    with pytest.raises(InvalidArgument, match="holds no array of numbers"):
        read_field(str(file), "float32")
    with pytest.raises(FileNotFoundError):
        read_field(str(tmp_path / "missing.npy"), "float32")
