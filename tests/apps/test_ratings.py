"""MovieLens's three forms, the held-out item of each user, and clear errors for anything else."""

import gzip

import numpy as np
import pytest

from mpicomp.apps import ratings
from mpicomp.errors import CorruptFile, InvalidArgument

# user, item, rating, time
ROWS = [(7, 30, 4, 100), (7, 10, 5, 300), (7, 20, 3, 200), (3, 10, 1, 50), (9, 20, 2, 70), (9, 30, 3, 70)]
FORMS = {"u.data": ("", "\t"), "ratings.dat": ("", "::"), "ratings.csv": ("userId,movieId,rating,timestamp\n", ",")}


def written(path, name="u.data", rows=ROWS, end="\n"):
    header, separator = FORMS[name]
    path.mkdir(exist_ok=True)
    (path / name).write_text(header + "".join(separator.join(map(str, row)) + end for row in rows))
    return str(path)


def pairs(data):
    return list(zip(data.train_users, data.train_items, strict=True)), list(
        zip(data.test_users, data.test_items, strict=True)
    )


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_three_forms_are_the_same(tmp_path, name, end):
    data = ratings.load(written(tmp_path / "ml", name, end=end))
    # users 3, 7, 9; items 10, 20, 30; of one time the later in the file is the latest; user 3 has nothing to hold out
    train, test = pairs(data)
    assert train == [(0, 0), (1, 1), (1, 2), (2, 1)] and test == [(1, 0), (2, 2)]
    assert (data.users, data.items, data.name) == (3, 3, "ml")
    (tmp_path / "x.gz").write_bytes(gzip.compress((tmp_path / "ml" / name).read_bytes()))
    packed = ratings.load(str(tmp_path / "x.gz"))
    assert pairs(packed) == (train, test) and packed.facts() == {**data.facts(), "name": "x.gz"}


def test_fractions_and_pairs_that_are_there_twice(tmp_path):
    rows = [(1, 1, 3.5, 10), (1, 2, 0.5, 20), (1, 1, 4.0, 30), (2, 1, 5, 1), (2, 3, 5, 2)]
    train, test = pairs(ratings.load(written(tmp_path / "x", "ratings.csv", rows)))
    assert train == [(0, 1), (1, 0)] and test == [(0, 0), (1, 2)]


def test_the_generator_makes_the_format_it_is_read_in(tmp_path):
    source = "synthetic:users=40,items=120,each=9,seed=5"
    made = ratings.load(source)
    (tmp_path / "u.data").write_bytes(ratings.generate(source))
    read = ratings.load(str(tmp_path / "u.data"))
    assert {**made.facts(), "name": ""} == {**read.facts(), "name": ""}
    assert len(made.train_users) == 40 * 8 and np.array_equal(made.test_users, np.arange(40))
    assert not set(pairs(made)[0]) & set(pairs(made)[1])
    assert made.facts() != ratings.load(source.replace("seed=5", "seed=6")).facts()


@pytest.mark.parametrize(("content", "words"), [
    (b"", "line 1: expected user, item, rating, timestamp between tabs, commas or ::, got ''"),
    (b"\x89PNG\r\n\x1a\n", "line 1: expected user, item"),
    (b"userId,movieId,rating,timestamp", "holds no ratings"),
    (b"userId,movieId,tag,timestamp\n1,2,x,3\n", "line 1: .*between commas.* got 'userId,movieId,tag,timestamp'"),
    (b"1\t2\t3\t4\n1\t2\t3\n", r"line 2: .*between tabs.* got '1\\t2\\t3'"),
    (b"1\t2\t3\n", "line 1: .*between tabs"),
    (b"1\t2\t3\t4\n\n5\t6\tx\t8\n", r"line 3: .* got '5\\t6\\tx\\t8'"),
    (b"1\t2\t3\t4\n  \n5\t6\t7\t8\n", "line 2: .* got '  '"),
    (b"1::2::3::4\n1::2.5::3::4\n", "line 2: .*between ::, .*two whole, got '1::2.5::3::4'"),
    (b"1::2::3::4\n-1::2::3::4\n", "line 2"),
    (b"1::2::3::4\n1:::2::3::4\n", "line 2"),
    (b"1::2::3::4\n1\t2\t3\t4\n", "line 2"),
    (b"1,2,3,4\n1,2,nan,4\n", "line 2: .*between commas"),
    (b"1,2,3,4\n1,2,3,1e999\n", "line 2"),
    (b"1,2,3,4\n99999999999999999999,2,3,4\n", "line 2"),
    (b"1,2,3,4\n1,2,3,\xff\n", "line 2"),
    (b"1,2,3,4\n1,5,3,4\x85\n", "line 2"),
    (b"1,2,3,4\n1,5,3,\x1c4\n", "line 2"),
    (b"1,2,3,9007199254740991\n1,5,3,9007199254740992\n", r"line 2: .*all numbers below 2\*\*53"),
    (b"1,2,3,4\n" * 9000 + b"1,2\n", "line 9001"),
    (b"1\t2\t3\t4\n2\t2\t3\t4\n", "at least 2 ratings of some user, got 2 ratings of 2 users"),
])
def test_a_wrong_file(tmp_path, content, words):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CorruptFile, match=words):
        ratings.load(str(tmp_path / "x"))


@pytest.mark.parametrize(("source", "words"), [
    ("nowhere", "no ratings in 'nowhere': expected u.data, ratings.dat, ratings.csv or a folder"),
    ("synthetic:users=x", "expected synthetic:users=200,items=300,each=12,seed=0"),
    ("synthetic:items=5,each=6", "each of 2 to items"),
    ("synthetic:users=1000000,items=1000000", "users times items of at most"),
])
def test_a_wrong_name(source, words):
    with pytest.raises(InvalidArgument, match=words):
        ratings.load(source)


def test_a_cut_file(tmp_path):
    whole = gzip.compress(b"1\t2\t3\t4\n" * 2000)
    (tmp_path / "x").write_bytes(whole[:-20])
    with pytest.raises(CorruptFile, match="breaks off or is damaged"):
        ratings.load(str(tmp_path / "x"))
