"""The LIBSVM reader: what it takes, and where it says the fault is."""

import bz2
import gzip
import lzma

import numpy as np
import pytest

from mpicomp.apps import libsvm
from mpicomp.apps.matrix import Dense, Sparse
from mpicomp.errors import CorruptFile

TEXT = b"# made by hand\n+1 1:0.5 3:-2e1  # a comment\n\n-1 2:1\r\n1 4:7\n"
FEATURES = np.array([[0.5, 0, -20, 0], [0, 1, 0, 0], [0, 0, 0, 7]])
LABELS = [1, -1, 1]


def dense(matrix):
    return matrix.dense_rows(np.arange(matrix.shape[0]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_reads_plain_and_compressed_text_whatever_its_name(tmp_path, pack):
    path = tmp_path / "rows"
    path.write_bytes(pack(TEXT))
    features, labels = libsvm.read(path)
    assert np.array_equal(dense(features), FEATURES)
    assert labels.tolist() == LABELS


def test_few_nonzeros_stay_sparse(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 1:1 100:2\n-1 50:3\n1\n")
    features, labels = libsvm.read(path)
    assert isinstance(features, Sparse) and features.shape == (3, 100) and features.nonzeros == 3
    assert labels.size == 3 and not dense(features)[2].any()


def test_many_nonzeros_become_dense(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 1:1 2:2\n-1 1:3 2:4\n")
    assert isinstance(libsvm.read(path)[0], Dense)


FAULTS = {
    "1 1:2\n-1 2:1 x:3\n": "line 2, column 8: expected index:value, got 'x:3'",
    "1 1:2\n-1  7\n": "line 2, column 5: expected index:value, got '7'",
    "1 1:2:3\n": "line 1, column 3: expected a number after the colon (finite), got '2:3'",
    "1 1:\n": "line 1, column 3: expected a number",
    "1 1:nan\n": "got 'nan'",
    "1 1:1e999\n": "got '1e999'",
    "1 1:1_0\n": "got '1_0'",
    "yes 1:2\n": "line 1, column 1: expected a label (finite), got 'yes'",
    "inf 1:2\n": "expected a label",
    "1,2 1:2\n": "expected a label",
    "1 0:2\n": "line 1, column 3: expected an index of 1 to 2147483647, ascending, got 0",
    "1 2:1 2:1\n": "line 1, column 7: expected an index of 3 to",
    "1 3:1 2:1\n": "ascending, got 2",
    "1 99999999999:1\n": "got 99999999999",
    "\x89PNG\n": "line 1, column 1: expected a label",
    "": "has no rows",
    "# only a comment\n": "has no rows",
    "1\n-1\n": "no features",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_with_line_and_column(tmp_path, text):
    path = tmp_path / "rows"
    path.write_text(text)
    with pytest.raises(CorruptFile) as caught:
        libsvm.read(path)
    assert FAULTS[text] in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_archive_is_refused(tmp_path, pack, damage):
    packed = bytearray(pack(b"".join(b"1 %d:1\n" % n for n in range(1, 5000))))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "rows"
    path.write_bytes(packed)
    with pytest.raises(CorruptFile):
        libsvm.read(path)


def test_an_index_of_thousands_of_digits(tmp_path):
    """int() refuses those with an error of its own."""
    path = tmp_path / "long.txt"
    path.write_text("1 " + "9" * 5000 + ":1")
    with pytest.raises(CorruptFile, match="line 1, column 3"):
        libsvm.read(path)


def test_a_vector_far_longer_than_the_file(tmp_path):
    """Sixteen gigabytes for ten characters."""
    path = tmp_path / "wide.txt"
    path.write_text("1 2147483647:1")
    with pytest.raises(CorruptFile, match="1 numbers but an index of 2147483647"):
        libsvm.read(path)


def test_a_line_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "_LONGEST_LINE", 1000)
    path = tmp_path / "endless.gz"
    path.write_bytes(gzip.compress(b"1" * 10_000_000))
    with pytest.raises(CorruptFile, match="line 1 has 1000 bytes or more"):
        libsvm.read(path)
