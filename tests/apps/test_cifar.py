"""CIFAR-10's binary version and archives of JPEG images: read as they were made, and clear errors for anything else."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from mpicomp.apps import cifar, images
from mpicomp.apps.mlp import MLP
from mpicomp.errors import CorruptFile, InvalidArgument

SOURCE = "synthetic:train=23,test=7,seed=3,channels=3"


@pytest.fixture
def folder(tmp_path):
    """The generator's images in the official format."""
    path = tmp_path / "cifar"
    path.mkdir()
    cifar.write_folder(path, list(images.load(SOURCE)[1:]))
    return path


def test_the_binary_version_is_read_as_it_was_made(folder):
    made, read = images.load(SOURCE), images.load(str(folder))
    assert all(np.array_equal(a, b) for a, b in zip(made[1:], read[1:], strict=True))
    assert {**made.facts(), "name": ""} == {**read.facts(), "name": ""} and read.shape == (3, 32, 32)
    first = (folder / "data_batch_1.bin").read_bytes()
    assert first[0] == made.train_labels[0] and first[1] == made.train_images[0, 0, 0, 0]
    assert first[1 + 1024 + 33] == made.train_images[0, 1, 1, 1] and len(first) == 5 * 3073
    assert MLP(read, 0, hidden=(3,)).layers == (3072, 3, 10)


@pytest.mark.parametrize(("change", "error", "words"), [
    (lambda path: (path / "data_batch_3.bin").unlink(), InvalidArgument, "no data_batch_3.bin in .* binary version"),
    (lambda path: (path / "test_batch.bin").write_bytes(b"x" * 3072), CorruptFile, "records of 3073 bytes, got 3072"),
    (lambda path: (path / "test_batch.bin").write_bytes(b""), CorruptFile, "records of 3073 bytes, got 0"),
    (lambda path: (path / "test_batch.bin").write_bytes(b"\x0a" * 3073), CorruptFile, "0 to 9, got 10"),
    (lambda path: path.rename(path.parent / "cifar-10-batches-bin"), CorruptFile, r"must hold 50000 \+ 10000 images"),
])
def test_a_wrong_folder(folder, change, error, words):
    change(folder)
    found = folder if folder.exists() else folder.parent / "cifar-10-batches-bin"
    with pytest.raises(error, match=words):
        images.load(str(found))


def test_pickles_are_not_opened(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": [1]}))
    with pytest.raises(InvalidArgument, match=r"binary version .*got the python version"):
        images.load(str(tmp_path))


def jpegs(n):
    """Files of smooth colours, and what they show."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    shown = np.kron(np.random.default_rng().integers(256, size=(n, 2, 2, 3)), np.ones((1, 16, 16, 1))).astype(np.uint8)
    files = [io.BytesIO() for _ in shown]
    for file, one in zip(files, shown, strict=True):
        image.fromarray(one).save(file, "JPEG", quality=95)
    return [file.getvalue() for file in files], shown.transpose(0, 3, 1, 2)


def arrays(files, split, **changes):
    whole = {"jpeg": np.frombuffer(b"".join(files), np.uint8), "labels": np.arange(len(files), dtype=np.uint8),
             "offsets": np.cumsum([0, *map(len, files)]), **changes}  # fmt: skip
    return {f"{split}_{name}": array for name, array in whole.items()}


def test_an_archive_of_jpeg_files(tmp_path):
    (files, shown), (others, _) = jpegs(6), jpegs(2)
    np.savez_compressed(tmp_path / "x.npz", **arrays(files, "train"), **arrays(others, "test"))
    read = images.load(str(tmp_path / "x.npz"))
    assert np.abs(read.train_images.astype(int) - shown).mean() < 8 and read.train_labels.tolist() == list(range(6))
    assert read.test_images.shape == (2, 3, 32, 32)


def test_the_copy_at_hand(real_data):
    data = images.load(real_data("cifar-10/cifar10_jpeg_12000.npz"))
    assert data.train_images.shape == (10_000, 3, 32, 32) and data.test_images.shape == (2_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [1000] * 10
    assert np.bincount(data.test_labels).tolist() == [200] * 10


@pytest.mark.parametrize(("changes", "words"), [
    ({"offsets": np.array([0, 5])}, "offsets must rise from 0 to"),
    ({"offsets": np.array([0.0, 5.0])}, "train_offsets must be a vector of whole numbers, got float64"),
    ({"jpeg": np.zeros((2, 2), np.uint8)}, r"a vector of whole numbers, got uint8 of shape \(2, 2\)"),
    ({"jpeg": np.array([{"code": 1}])}, "train_jpeg must be a vector of whole numbers, got object"),
    ({"labels": np.array([-1, 0])}, "train_labels must be small whole numbers"),
    ({"labels": np.array([1])}, "as many training images of 3x32x32 as labels"),
    ({"jpeg": np.zeros(10, np.uint8), "offsets": np.array([0, 4, 10])}, "no .npz archive of JPEG images or is damaged"),
])
def test_a_wrong_archive(tmp_path, changes, words):
    files, _ = jpegs(2)
    np.savez(tmp_path / "x.npz", **arrays(files, "train", **changes), **arrays(files, "test"))
    with pytest.raises(CorruptFile, match=words):
        images.load(str(tmp_path / "x.npz"))


def test_archives_that_lie(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(CorruptFile, match=r"no \.npz archive"):
        images.load(str(tmp_path / "x.npz"))
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"shape": (1 << 40,), "fortran_order": False, "descr": "|u1"})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("train_jpeg.npy", head.getvalue() + b"abc")
    with pytest.raises(CorruptFile, match=f"must hold {1 << 40} numbers .* got 3 bytes"):
        images.load(str(tmp_path / "x.npz"))
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    large = io.BytesIO()
    image.new("RGB", (33, 32)).save(large, "JPEG")
    files = [large.getvalue()]
    np.savez(tmp_path / "x.npz", **arrays(files, "train"), **arrays(files, "test"))
    with pytest.raises(CorruptFile, match=r"images must have 32 x 32 points, number 0 has \(33, 32\)"):
        images.load(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("text", ["synthetic:channels=2", "synthetic:channels=4,train=5"])
def test_a_wrong_stand_in(text):
    with pytest.raises(InvalidArgument, match="1 or 3 channels"):
        images.load(text)
