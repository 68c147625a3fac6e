"""Generated schemes and data sets (hypothesis): each is read back the same, or refused with one of our errors."""

from __future__ import annotations

import numpy as np
import pytest
from generating import tries
from hypothesis import given
from hypothesis import strategies as st
from kept import written

from mpicomp.apps import cifar, idx, images, libsvm, ratings, texts
from mpicomp.errors import CorruptFile, MpicompError
from mpicomp.schemes import Scheme, names, table

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORD = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=4)


# ---- schemes

ROWS = {row["name"]: row for row in table()}
WORDS = ("per-tensor", "whole", "none", "first+1d", "norm", "float16", "gather", "top-k", "levels", "nan", "1e999",
         "-0", "0x1", "1_0", "9" * 5000, "inf", "auto", "never", "")  # fmt: skip


@st.composite
def scheme_texts(draw):
    """A scheme with some of its options, at their defaults or at anything."""
    name = draw(st.sampled_from(names()))
    options = {option["name"]: option["default"] for option in ROWS[name]["options"]}
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True))
    own = draw(st.booleans())
    anything = st.one_of(st.sampled_from(WORDS), FINITE.map(str), st.integers().map(str), st.text(max_size=5))
    values = [str(options[one]) if own or draw(st.booleans()) else draw(anything) for one in chosen]
    blank = draw(st.sampled_from(["", " "]))
    return name + ":" + f",{blank}".join(f"{one}={value}" for one, value in zip(chosen, values, strict=True))


@tries(150)
@given(st.one_of(scheme_texts(), st.text(max_size=30)))
def test_a_scheme_is_itself_again_or_refused(text):
    try:
        scheme = Scheme.parse(text)
    except MpicompError as error:
        assert str(error)
        return
    again = Scheme.parse(str(scheme))
    assert again == scheme and hash(again) == hash(scheme) and again.options == scheme.options


# ---- data sets

@tries(40)
@given(rows=st.lists(st.tuples(FINITE, st.dictionaries(st.integers(0, 7), FINITE, max_size=8)), min_size=1, max_size=8),
       comment=st.sampled_from(["", " # 9:9", "#"]), end=st.sampled_from(["\n", "\r\n"]))  # fmt: skip
def test_libsvm_is_read_as_it_was_written(place, rows, comment, end):
    lines = [" ".join([repr(label), *(f"{column + 1}:{row[column]!r}" for column in sorted(row))]) + comment
             for label, row in rows]  # fmt: skip
    path = written(place, "generated.txt", end.join(lines).encode())
    width = max((column + 1 for _, row in rows for column in row), default=0)
    if not width:
        with pytest.raises(CorruptFile, match="no features"):
            libsvm.read(path)
        return
    features, labels = libsvm.read(path)
    expected = np.zeros((len(rows), width))
    for number, (_, row) in enumerate(rows):
        expected[number, list(row)] = list(row.values())
    assert labels.tolist() == [label for label, _ in rows]
    np.testing.assert_array_equal(features.dense_rows(np.arange(len(rows))), expected)


@tries(40)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), data=st.data())
def test_idx_is_read_as_it_was_written_and_no_other_length(place, shape, data):
    size = int(np.prod(shape))
    values = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape)
    content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + values.tobytes()
    written(place, "set", content)
    np.testing.assert_array_equal(idx.read(place, "set", len(shape)), values)
    end = data.draw(st.integers(0, len(content) - 1))
    written(place, "set", content[:end])
    with pytest.raises(CorruptFile):
        idx.read(place, "set", len(shape))


@tries(40)
@given(rows=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**40)),
                     min_size=1, max_size=30), form=st.sampled_from(["\t", "::", ","]))  # fmt: skip
def test_of_ratings_the_latest_of_each_user_is_held_out(place, rows, form):
    header = [ratings.HEADER.decode()] if form == "," else []
    lines = [*header, *(form.join(map(str, row)) for row in rows)]
    path = written(place, "generated.ratings", "\n".join(lines).encode())
    latest = {}  # of each pair the last of the greatest time
    for number, (user, item, _, time) in enumerate(rows):
        latest[user, item] = max(latest.get((user, item), (-1, -1)), (time, number))
    by_user = {user: sorted((when, item) for (one, item), when in latest.items() if one == user)
               for user in {user for user, _ in latest}}  # fmt: skip
    expected = [(user, pairs[-1][1]) for user, pairs in sorted(by_user.items()) if len(pairs) > 1]
    if not expected:
        with pytest.raises(CorruptFile, match="at least 2 ratings"):
            ratings.load(str(path))
        return
    loaded = ratings.load(str(path))
    users, items = sorted(by_user), sorted({item for _, item in latest})
    held_out = list(zip(loaded.test_users.tolist(), loaded.test_items.tolist(), strict=True))
    assert held_out == [(users.index(user), items.index(item)) for user, item in expected]
    assert loaded.train_users.size + len(held_out) == len(latest)


@tries(40)
@given(lines=st.lists(st.lists(WORD, min_size=1, max_size=5), min_size=3, max_size=8))
def test_texts_are_numbered_word_by_word(place, lines):
    folder = place / "texts"
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        written(folder, f"{split}.txt", "\n".join(map(" ".join, lines)).encode() + b"\n")
    loaded = texts.load(str(folder), "word")
    words = [word for line in lines for word in [*line, texts.END]]
    assert len(loaded.train) == len(words) and loaded.symbols == len(set(words))
    assert len(set(zip(words, loaded.train.tolist(), strict=True))) == len(set(words))  # one number a word
    np.testing.assert_array_equal(loaded.train, loaded.held_out)


@tries(10)
@given(seed=st.integers(0, 2**32 - 1), end=st.integers(-40, 40))
def test_cifar_records_are_read_as_they_were_written_and_whole_only(place, seed, end):
    rng, folder = np.random.default_rng(seed), place / "cifar"
    folder.mkdir(exist_ok=True)
    made = images.load(f"synthetic:train=5,test=2,channels=3,seed={seed % 99}")
    arrays = [rng.integers(256, size=one.shape).astype(np.uint8) if one.ndim > 1 else one for one in made[1:]]
    cifar.write_folder(folder, arrays)
    for read, given_one in zip(images.load(str(folder))[1:], arrays, strict=True):
        np.testing.assert_array_equal(read, given_one)
    content = (folder / "test_batch.bin").read_bytes()
    if end:
        written(folder, "test_batch.bin", content[:end] if end < 0 else content + bytes(end))
        with pytest.raises(CorruptFile):
            images.load(str(folder))
