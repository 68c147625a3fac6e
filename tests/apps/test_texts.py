"""Texts as numbers: the official facts, the forms of folders and files, and clear errors for anything else."""

import bz2
import gzip
import lzma

import numpy as np
import pytest

from mpicomp.apps import compressed_files, texts
from mpicomp.errors import CorruptFile, InvalidArgument

LINES = {"train": " = a =\n\nthe cat sat on the mat\n", "valid": "the dog\n", "test": "a mat .\n"}


def folder(path, pattern="wiki.{}.tokens", pack=lambda data: data, end=""):
    path.mkdir(exist_ok=True)
    for split, text in LINES.items():
        (path / (pattern.format(split) + end)).write_bytes(pack(text.encode()))
    return str(path)


def test_the_published_sizes(real_data):
    path = real_data("wikitext-2/train.txt.xz").rsplit("/", 1)[0]
    text = texts.load(path)
    assert (len(text.train), len(text.held_out), text.symbols) == (2_088_628, 217_646, 33_278)
    assert text.train.max() == 33_277 or text.held_out.max() < 33_278
    characters = texts.load(real_data("tinyshakespeare/input.txt"), split="test")
    assert characters.level == "char" and characters.symbols == 65
    assert len(characters.train) == int(0.9 * 1_115_394) and len(characters.held_out) == 55_770


@pytest.mark.parametrize(("pattern", "pack", "end"), [
    ("wiki.{}.tokens", bytes, ""), ("ptb.{}.txt", gzip.compress, ".gz"), ("{}.txt", lzma.compress, ".xz"),
    ("{}.txt", bz2.compress, ".bz2"),
])
def test_a_folder_of_three(tmp_path, pattern, pack, end):
    text = texts.load(folder(tmp_path / "x", pattern, pack, end))
    # = a = <eos> <eos> the cat sat on the mat <eos>
    assert text.train.tolist() == [0, 1, 0, 2, 2, 3, 4, 5, 6, 3, 7, 2] and text.train.dtype == np.int32
    assert text.held_out.tolist() == [3, 8, 2] and text.symbols == 10 and text.level == "word"
    assert texts.load(str(tmp_path / "x"), split="test").held_out.tolist() == [1, 7, 9, 2]
    assert texts.load(str(tmp_path / "x"), "char").train.tolist()[:6] == [0, 1, 0, 2, 0, 1]
    short = texts.load(str(tmp_path / "x"), tokens=5, eval_tokens=2)
    assert (len(short.train), len(short.held_out), short.symbols) == (5, 2, 10)
    assert short.facts() != text.facts() and short.facts()["level"] == "word"


def test_a_single_file_is_cut(tmp_path):
    (tmp_path / "x.txt").write_text("abcdefghij" * 10)
    text = texts.load(str(tmp_path / "x.txt"))
    assert (len(text.train), len(text.held_out), text.symbols) == (90, 5, 10)
    assert text.held_out.tolist() == [0, 1, 2, 3, 4]


def test_a_byte_order_mark_is_no_symbol(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf" + b"abcdefghij" * 10)
    assert texts.load(str(tmp_path / "x.txt")).symbols == 10
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfabc\xff")
    with pytest.raises(CorruptFile, match="got byte 0xff at 6"):
        texts.load(str(tmp_path / "x.txt"))


def test_the_generator_is_seeded_and_can_be_foreseen():
    text = texts.load("synthetic:tokens=5000,symbols=20,seed=3")
    again, other = (texts.load(f"synthetic:tokens=5000,symbols=20,seed={seed}") for seed in (3, 4))
    assert np.array_equal(text.train, again.train) and not np.array_equal(text.train, other.train)
    assert text.train.shape == (5000,) and text.held_out.shape == (500,) and text.train.max() < 20
    pairs = np.zeros((20, 20))
    np.add.at(pairs, (text.train[:-1], text.train[1:]), 1)
    assert np.sort(pairs, axis=1)[:, -3:].sum() > 0.75 * pairs.sum()  # by chance: 0.15


@pytest.mark.parametrize(("source", "error", "words"), [
    ("nothing.txt", InvalidArgument, "no file or folder"),
    ("synthetic:tokens=0", InvalidArgument, "expected synthetic:tokens=20000,symbols=30"),
    ("synthetic:words=3", InvalidArgument, "expected synthetic:tokens=20000,symbols=30"),
    ("synthetic:tokens=" + "9" * 5000, InvalidArgument, "expected synthetic:tokens=20000,symbols=30"),
])
def test_a_wrong_name(source, error, words):
    with pytest.raises(error, match=words):
        texts.load(source)


def test_wrong_folders_and_files(tmp_path):
    path = tmp_path / "x"
    folder(path)
    (path / "wiki.test.tokens").unlink()
    with pytest.raises(InvalidArgument, match=r"expected wiki.train.tokens, ptb.train.txt, train.txt .*valid and test"):
        texts.load(str(path))
    (path / "wiki.test.tokens").write_bytes(lzma.compress(b"a " * 2000)[:-20])
    with pytest.raises(CorruptFile, match=r"wiki.test.tokens breaks off or is damaged after \d+ bytes"):
        texts.load(str(path))
    (path / "wiki.test.tokens").write_bytes(b"good \xff bad")
    with pytest.raises(CorruptFile, match="must be UTF-8 text, got byte 0xff at 5"):
        texts.load(str(path))
    (path / "wiki.test.tokens").write_bytes(b"")
    with pytest.raises(CorruptFile, match=r"at least 2 words to train, validate and test, got \(12, 3, 0\)"):
        texts.load(str(path))
    with pytest.raises(CorruptFile, match=r"must hold \(2088628, .* 33278\) words .* got \(12, 3, 4, 10\)"):
        texts.load(folder(tmp_path / "wikitext-2"))
    assert texts.load(str(tmp_path / "wikitext-2"), "char").symbols == 15  # only the number of words is published
    with pytest.raises(InvalidArgument, match="tokens must be 2 to 12, what there is, got 13"):
        texts.load(folder(tmp_path / "y"), tokens=13)
    with pytest.raises(InvalidArgument, match="level must be word or char and split valid or test, got 'line'"):
        texts.load(folder(tmp_path / "y"), "line")


def test_a_small_file_that_would_fill_the_memory(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(CorruptFile, match="must hold at most 1048576 bytes, got more"):
        compressed_files.read(tmp_path / "bomb.gz", 1 << 20)
    assert len(compressed_files.read(tmp_path / "bomb.gz", 3 << 20)) == 3 << 20


def test_made_up_text_has_a_test_text_and_no_characters():
    source = "synthetic:tokens=300,seed=1"
    valid, test = (texts.load(source, split=split) for split in texts.SPLITS[1:])
    assert (valid.train == test.train).all() and len(valid.held_out) == len(test.held_out) == 30
    assert (valid.held_out != test.held_out).any()
    with pytest.raises(InvalidArgument, match=r"level of synthetic.* must be word, got 'char'"):
        texts.load(source, "char")
    with pytest.raises(InvalidArgument, match="level must be word or char and split valid or test, got 'word' and 'x'"):
        texts.load(source, split="x")


def test_numbers_of_symbols_are_named_as_they_are_given():
    with pytest.raises(InvalidArgument, match="eval_tokens must be 2 to 2000, what there is, got 1"):
        texts.load("synthetic", eval_tokens=1)
