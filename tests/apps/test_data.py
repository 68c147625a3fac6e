"""Data sets by name: the facts of the public ones, the generator, and what is refused."""

import numpy as np
import pytest

from mpicomp.apps import data, read_matlab
from mpicomp.apps.matrix import Dense, Sparse
from mpicomp.errors import CorruptFile, InvalidArgument, MissingExtra

scipy_io = pytest.importorskip("scipy.io")


def test_madelon(real_data):
    madelon = data.load(real_data("madelon/madelon.mat"))
    assert madelon.features.shape == (2000, 500) and isinstance(madelon.features, Dense)
    assert (madelon.labels == 1).sum() == 1000
    assert data.load(real_data("madelon/madelon.mat"), rows=2600).features.shape == (2600, 500)


def test_a9a(real_data):
    a9a = data.load(real_data("a9a/a9a.gz"))
    assert a9a.features.shape == (32561, 123) and a9a.features.nonzeros == 451592
    assert isinstance(a9a.features, Sparse) and set(a9a.labels) == {-1, 1}
    assert data.load(real_data("a9a/a9a.t.gz")).labels.size == 16281


def test_w8a(real_data):
    w8a = data.load(real_data("w8a/w8a.gz"))
    assert w8a.features.shape == (49749, 300) and w8a.features.nonzeros == 579586
    assert (w8a.labels == 1).sum() == 1479


def test_synthetic_is_the_same_every_time():
    first, again = (data.load("synthetic:n=200,d=30,seed=3") for _ in range(2))
    assert first.features.shape == (200, 30) and set(first.labels) == {-1, 1}
    assert np.array_equal(first.features.values, again.features.values)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.features.values, data.load("synthetic:n=200,d=30,seed=4").features.values)


@pytest.mark.parametrize("options", ["n=", "m=3", "n=-5", "n=1.5", "n=1", "d=0", "d=3,d=4"])
def test_synthetic_refuses(options):
    with pytest.raises(InvalidArgument, match="synthetic"):
        data.load(f"synthetic:{options}")


@pytest.mark.parametrize(("text", "signs"), [
    ("0 1:1\n1 1:2\n", [-1, 1]), ("2 1:1\n1 1:2\n", [1, -1]), ("+1 1:1\n-1 1:2\n", [1, -1]),
])  # fmt: skip
def test_the_greater_label_is_plus_one(tmp_path, text, signs):
    path = tmp_path / "rows"
    path.write_text(text)
    assert data.load(str(path)).labels.tolist() == signs


@pytest.mark.parametrize(("labels", "said"), [([1, 1], "got 1: 1"), ([1, 2, 3], "got 3: 1, 2, 3")])
def test_labels_must_be_of_two_classes(tmp_path, labels, said):
    path = tmp_path / "rows"
    path.write_text("".join(f"{label} 1:1\n" for label in labels))
    with pytest.raises(InvalidArgument, match=f"two classes, {said}"):
        data.load(str(path))


def test_a_missing_file_and_too_many_rows_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no file .*synthetic:"):
        data.load(str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="no file"):
        data.load(str(tmp_path))
    with pytest.raises(InvalidArgument, match="at most 200"):
        data.load("synthetic:n=200", rows=201)


def test_mat_files_dense_and_sparse(tmp_path):
    from scipy.sparse import csc_matrix

    features = np.diag(np.arange(1.0, 9.0))
    labels = np.array([0, 1] * 4)
    for name, values in (("dense", features), ("sparse", csc_matrix(features))):
        path = tmp_path / f"{name}.mat"
        scipy_io.savemat(path, {"X": values, "Y": labels})
        loaded = data.load(str(path))
        assert np.array_equal(loaded.features.dense_rows(np.arange(8)), features)
        assert loaded.labels.tolist() == [-1, 1] * 4


@pytest.mark.parametrize(("content", "said"), [
    ({"Z": np.eye(3), "Y": [0, 1, 1]}, "expected a variable named X .*found Z, Y"),
    ({"X": np.eye(3)}, "expected a variable named Y"),
    ({"X": np.eye(3), "Y": [0, 1]}, "a row of features a label"),
    ({"X": np.array([[1.0], [np.nan], [2.0]]), "Y": [0, 1, 1]}, "feature of row 2 is not a finite"),
    ({"X": np.eye(3), "Y": [0, 1, np.inf]}, "label of row 3 is not a finite"),
])  # fmt: skip
def test_mat_files_that_hold_something_else(tmp_path, content, said):
    path = tmp_path / "bad.mat"
    scipy_io.savemat(path, content)
    with pytest.raises(CorruptFile, match=said):
        data.load(str(path))


def test_a_damaged_mat_file_is_refused(tmp_path):
    path = tmp_path / "cut.mat"
    scipy_io.savemat(path, {"X": np.random.default_rng(0).random((50, 50)), "Y": np.arange(50) % 2})
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptFile, match=str(path)):
        data.load(str(path))


def test_without_scipy_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "some.mat").write_bytes(b"MATLAB 5.0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'mpicomp\[data\]'"):
        data.load(str(tmp_path / "some.mat"))


def test_a_mat_file_that_crashes_its_reader(tmp_path, monkeypatch):
    """SciPy 1.17 ends by a segmentation fault on some damaged sparse matrices."""
    crash = tmp_path / "child.py"
    crash.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr("mpicomp.apps.matfile.CHILD", crash)
    (tmp_path / "some.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(CorruptFile, match="damaged: its reader ended with -11"):
        data.load(str(tmp_path / "some.mat"))


@pytest.mark.parametrize(("hard", "expected"), [(-1, 5000), (9000, 5000), (1000, 1000)])
def test_the_reader_of_mat_files_keeps_within_the_limits_of_the_job(monkeypatch, hard, expected):
    limits = {}
    monkeypatch.setattr(read_matlab.resource, "getrlimit", lambda kind: (hard, hard))
    monkeypatch.setattr(read_matlab.resource, "setrlimit", limits.__setitem__)
    read_matlab.lower(read_matlab.resource.RLIMIT_AS, 5000)
    assert limits == {read_matlab.resource.RLIMIT_AS: (expected, expected)}


def test_sparse_mat_files_whose_indices_point_outside(tmp_path):
    """SciPy follows them into foreign memory."""
    from scipy.sparse import csc_matrix

    features = csc_matrix(np.eye(6))
    features.indices[3] = 1 << 20
    path = tmp_path / "bent.mat"
    scipy_io.savemat(path, {"X": features, "Y": np.arange(6) % 2})
    with pytest.raises(CorruptFile, match="indices must be < 6"):
        data.load(str(path))


def test_features_that_are_no_numbers(tmp_path):
    for name, features in (("text", np.array(["a", "b"])), ("cells", np.array([[1, "b"]] * 2, object)),
                           ("complex", np.ones((2, 2), complex))):  # fmt: skip
        path = tmp_path / f"{name}.mat"
        scipy_io.savemat(path, {"X": features, "Y": [0, 1]})
        with pytest.raises(CorruptFile, match="expected matrices of real numbers"):
            data.load(str(path))
