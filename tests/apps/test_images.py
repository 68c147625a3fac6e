"""IDX files and the image data sets: the official facts, the stand-in, and clear errors for anything else."""

import gzip
import hashlib
from itertools import pairwise

import numpy as np
import pytest

from mpicomp.apps import idx, images
from mpicomp.apps.batches import Batches, Draws, Streams, mixed
from mpicomp.errors import CorruptFile, InvalidArgument

FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


@pytest.fixture
def folder(tmp_path):
    """The generator's images in the official format."""
    data = images.load("synthetic:train=60,test=20,seed=3")
    for name, array in zip(FILES, (*data[1:3], *data[3:5]), strict=True):
        idx.write(tmp_path / name, array)
    return tmp_path


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_the_official_files(real_data, name):
    path = real_data(f"{name}/train-images-idx3-ubyte.gz")
    data = images.load(path.rsplit("/", 1)[0])
    assert data.train_images.shape == (60_000, 28, 28) and data.test_images.shape == (10_000, 28, 28)
    assert data.train_images.dtype == np.uint8 and data.train_images.max() == 255
    for labels in (data.train_labels, data.test_labels):
        assert np.unique(labels).tolist() == list(range(10))
    if name == "fashion-mnist":
        assert np.bincount(data.train_labels).tolist() == [6000] * 10
        for file, md5 in FILES.items():
            with open(real_data(f"{name}/{file}"), "rb") as opened:
                assert hashlib.md5(opened.read()).hexdigest() == md5


def test_the_stand_in_is_read_as_it_was_made(folder):
    made, read = images.load("synthetic:train=60,test=20,seed=3"), images.load(str(folder))
    assert all(np.array_equal(a, b) for a, b in zip(made[1:], read[1:], strict=True))
    assert {**made.facts(), "name": ""} == {**read.facts(), "name": ""}
    assert made.facts() != images.load("synthetic:train=60,test=20,seed=4").facts()
    (folder / "t10k-labels-idx1-ubyte").write_bytes(
        gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    )
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert np.array_equal(images.load(str(folder)).test_labels, made.test_labels)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda path: path.unlink(), InvalidArgument, "no train-images-idx3-ubyte"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), CorruptFile, "cannot be read: "),
        (lambda path: path.write_bytes(b"no gzip"), CorruptFile, "cannot be read: "),
        (lambda path: idx.write(path, np.zeros(60)), CorruptFile, "must begin with 00000803"),
        (lambda path: idx.write(path, np.zeros((59, 28, 28))), CorruptFile, r"got \(59, 28, 28\) and 60"),
        (lambda path: idx.write(path, np.zeros((60, 28, 27))), CorruptFile, "as many training images of 28x28"),
        (lambda path: packed(path, bytes([0, 0, 8, 3]) + b"\xff" * 12), CorruptFile, "claims .* more than"),
        (lambda path: packed(path, bytes([0, 0, 8, 3, 0, 0])), CorruptFile, "must begin with"),
        (lambda path: packed(path, header(60, 28, 28) + b"1"), CorruptFile, "must hold 47040 values .* got 1"),
        (lambda path: packed(path, header(1, 1, 1) + b"12"), CorruptFile, "got more"),
    ],
)
def test_a_wrong_file_is_refused(folder, change, error, text):
    change(folder / "train-images-idx3-ubyte.gz")
    with pytest.raises(error, match=text):
        images.load(str(folder))


def header(*shape):
    return bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()


def packed(path, data):
    path.write_bytes(gzip.compress(data))


def test_labels_and_sizes_are_checked(folder):
    idx.write(folder / "t10k-labels-idx1-ubyte.gz", np.full(20, 10))
    with pytest.raises(CorruptFile, match="labels must be 0 to 9, got 10"):
        images.load(str(folder))
    data = images.load("synthetic:train=5,test=5")._replace(name="mnist")
    with pytest.raises(CorruptFile, match=r"must hold 60000 \+ 10000 images, got 5 \+ 5"):
        images.check(data, "here")


@pytest.mark.parametrize("text", ["train=0", "size=3", "seed=x", "test=9999999999"])
def test_a_wrong_stand_in_is_refused(text):
    with pytest.raises(InvalidArgument, match="expected synthetic:train=2000,test=500,seed=0,channels=1"):
        images.load("synthetic:" + text)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_batches_are_the_same_on_any_number_of_ranks(ranks):
    rows, workers, batch = 107, 5, 4
    alone = Batches(0, 1, rows, workers, batch, seed=9)
    spread = [Batches(rank, ranks, rows, workers, batch, seed=9) for rank in range(ranks)]
    assert alone.steps_per_epoch == 5
    epochs = []
    for step in (*range(10), 3):  # forwards, and back into the first epoch
        expected = alone.of(step)
        assert np.array_equal([one for part in spread for one in part.of(step)], expected)
        epochs.append(np.concatenate(expected))
    first, second = (np.concatenate(epochs[at : at + 5]) for at in (0, 5))
    assert len(set(first.tolist())) == 100 and first.max() < rows and not np.array_equal(first, second)
    assert np.array_equal(epochs[10], epochs[3])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_draws_are_rows_with_their_epoch(ranks):
    arguments = (107, 5, 4, 9)
    for rank in range(ranks):
        plain, draws = Batches(rank, ranks, *arguments), Draws(rank, ranks, *arguments)
        for step in (0, 4, 5, 13):
            expected = np.array(plain.of(step))
            assert np.array_equal(np.array(draws.of(step)) % 107, expected)
            assert (np.array(draws.of(step)) // 107 == step // 5).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_streams_go_on_where_they_were(ranks):
    """Every row once an epoch, each stream's in order; a worker's state passes from step to step, not over epochs."""
    rows, workers, batch = 63, 5, 3  # 4 rows in each of 15 streams
    spread = [Streams(rank, ranks, rows, workers, batch, 0, state=2) for rank in range(ranks)]
    seen = []
    for step in range(8):
        dealt = [(one, draws) for one in spread for draws in one.of(step)]
        seen.append(np.concatenate([draws for _, draws in dealt]))
        for number, (one, draws) in enumerate(dealt):
            worker = one.worker(draws)
            assert one.own[worker] == number
            assert (one.entering[worker] == (0 if step % 4 == 0 else number + 100 * step - 100)).all()
            one.carried[worker] = number + 100 * step
    assert all(np.array_equal(after, before + 1) for before, after in pairwise(seen[:4]))
    assert sorted(np.concatenate(seen[:4])) == list(range(60))
    assert np.array_equal(np.concatenate(seen[4:]), np.concatenate(seen[:4]) + rows)
    assert spread[0].carried.shape == (len(spread[0].own), 2 * batch)


def test_words_are_those_of_splitmix64():
    """The first outputs of the published generator for seed 0: a counter that grows by the same step."""
    step = 0x9E3779B97F4A7C15
    counter = np.array([0, step, 2 * step % 2**64], np.uint64)
    assert [hex(word) for word in mixed(counter, 0).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4",
                                                                 "0x6c45d188009454f"]  # fmt: skip


def save_jpegs(folder, classes, n):
    """``n`` images per class, each of one colour, of sizes that differ."""
    from PIL import Image

    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            size = (32, 32) if i % 2 else (40, 20)
            Image.new("RGB", size, (20 * label, 100, 5 * i)).save(folder / name / f"{i:03d}.JPG", "JPEG", quality=95)


def test_a_folder_of_jpeg_files_per_class(tmp_path):
    pytest.importorskip("PIL")
    save_jpegs(tmp_path / "train", ["ant", "bee"], 5)
    save_jpegs(tmp_path / "test", ["bee"], 2)
    data = images.load(str(tmp_path))
    assert data.shape == (3, 32, 32) and data.train_labels.tolist() == [0] * 5 + [1] * 5
    assert data.test_labels.tolist() == [1, 1]  # numbered as in train
    assert np.abs(data.train_images[:, 0].mean((1, 2)) - np.repeat([0, 20], 5)).max() < 3
    assert np.abs(data.train_images[3, 2].astype(int) - 15).max() < 6
    save_jpegs(tmp_path / "test", ["cow"], 2)
    with pytest.raises(InvalidArgument, match=r"test has classes that .*train lacks: cow"):
        images.load(str(tmp_path))


def test_folders_without_train_and_test_keep_every_sixth_image(tmp_path):
    pytest.importorskip("PIL")
    save_jpegs(tmp_path, [".ipynb_checkpoints", "ant", "bee"], 13)  # hidden folders are no classes
    data = images.load(str(tmp_path))
    assert np.bincount(data.train_labels).tolist() == [11, 11] and np.bincount(data.test_labels).tolist() == [2, 2]
    (tmp_path / "bee" / "000.JPG").write_bytes(b"no image")
    with pytest.raises(CorruptFile, match=r"bee/000.JPG is no JPEG image or is damaged"):
        images.load(str(tmp_path))
    save_jpegs(tmp_path, [f"class {i}" for i in range(9)], 1)
    with pytest.raises(InvalidArgument, match="at most 10 folders of JPEG files, one per class, got 11"):
        images.load(str(tmp_path))


def test_a_folder_of_something_else_is_told_every_form(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InvalidArgument, match=r"no images in .*train-images-idx3-ubyte.*binary version.*JPEG files per "
                                              r"class.*\.npz archive.*synthetic:"):
        images.load(str(tmp_path))
