"""Texts by name, as numbered words or characters: WikiText and Penn Treebank folders, single files, and a generator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument

from . import compressed_files, generator_options
from .data import read_once

SPLITS = ("train", "valid", "test")
LEVELS = ("word", "char")
NAMES = ("wiki.{}.tokens", "ptb.{}.txt", "{}.txt")  # of the three files in a folder
END = "<eos>"  # of a line; a symbol of its own where words are counted
# Words of the three files, and different ones in all, with the ends of lines.
OFFICIAL = {"wikitext-2": (2_088_628, 217_646, 245_569, 33_278)}
_SHARES = (0.9, 0.95)  # of a single file: training, then validation, then test
_DEFAULTS = {"tokens": 20_000, "symbols": 30, "seed": 0}
_SUCCESSORS = 3  # of a made-up word


class Text(NamedTuple):
    """Numbers of symbols, int32: what to train on and what to evaluate on."""

    name: str
    level: str
    symbols: int  # different ones
    train: np.ndarray
    held_out: np.ndarray

    def facts(self) -> dict[str, Any]:
        """Facts that distinguish this data from other data."""
        return {"name": self.name, "level": self.level, "symbols": self.symbols, "train": len(self.train),
                "held_out": len(self.held_out), "crc32": crc32(self.held_out.data, crc32(self.train.data))}  # fmt: skip


def load(source: str, level: str | None = None, split: str = "valid", tokens: int | None = None,
         eval_tokens: int | None = None) -> Text:  # fmt: skip
    """Read or make the text that ``source`` names.

    Parameters
    ----------
    source : str
        A folder with files for training, validation and test (``wiki.train.tokens``, ``ptb.train.txt`` or
        ``train.txt``, each may end in .xz, .gz, .bz2); one file; or ``synthetic:tokens=20000,symbols=30,seed=0``.
    level : {"word", "char"}, optional
        Words are what white space separates, and the end of each line counts as one, as in the published perplexities.
        Default: words of a folder, characters of a file.
    split : {"valid", "test"}
        What to evaluate on.
    tokens, eval_tokens : int, optional
        Use only so many symbols at the beginning, to train and to evaluate on.

    Raises
    ------
    CorruptFile, InvalidArgument
        Naming the file, the expected content and the one found.
    """
    path = Path(source)
    if source.partition(":")[0] == "synthetic":
        _check(level or "word", split)
        if level == "char":
            raise InvalidArgument(f"level of {source} must be word, got 'char': leave it out")
        text = _generate(source, split)
    elif path.is_dir():
        text = _numbered(path.resolve().name, source, level or "word", _three(path), split)
    elif path.is_file():
        text = _numbered(path.name, source, level or "char", _cut(_decoded(path)), split)
    else:
        raise InvalidArgument(f"no file or folder {source!r}; give a text or a folder with train.txt, valid.txt and "
                              "test.txt, or synthetic:tokens=20000,symbols=30,seed=1 to go without one")
    return text._replace(train=_first(text.train, tokens, "tokens"),
                         held_out=_first(text.held_out, eval_tokens, "eval_tokens"))


def share(comm: Any, source: str, *choices: Any) -> Text:
    """The text on every rank, read by rank 0 alone (collective).

    Raises
    ------
    The error of ``load``, on every rank.
    """
    return read_once(comm, lambda: load(source, *choices))


def _first(symbols: np.ndarray, most: int | None, name: str) -> np.ndarray:
    if most is None:
        return symbols
    if not 2 <= most <= len(symbols):
        raise InvalidArgument(f"{name} must be 2 to {len(symbols)}, what there is, got {most}")
    return symbols[:most]


def _three(folder: Path) -> list[str]:
    """The texts of a folder's three files."""
    for pattern in NAMES:
        found = [compressed_files.find(folder, (pattern.format(split),)) for split in SPLITS]
        paths = [path for path in found if path]
        if len(paths) == len(SPLITS):
            return [_decoded(path) for path in paths]
    wanted = ", ".join(pattern.format("train") for pattern in NAMES)
    raise InvalidArgument(f"no training, validation and test text in {folder}: expected {wanted} (.xz, .gz, .bz2 or "
                          "plain), with valid and test beside it")


def _cut(text: str) -> list[str]:
    ends = [0, *(int(share * len(text)) for share in _SHARES), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def _decoded(path: Path) -> str:
    try:
        return compressed_files.read(path).decode().removeprefix("\ufeff")  # a byte-order mark is no symbol
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise CorruptFile(f"{path} must be UTF-8 text, got byte {wrong:#04x} at {error.start}") from None


def _numbered(name: str, source: str, level: str, texts: list[str], split: str) -> Text:
    """Symbols numbered in the order in which they first appear: in the training text, then in the others."""
    _check(level, split)
    numbers: dict[str, int] = {}
    parts = [_numbers(_words(text) if level == "word" else text, numbers) for text in texts]
    sizes = *map(len, parts), len(numbers)
    if min(sizes[:3]) < 2:
        raise CorruptFile(f"{source} must hold at least 2 {level}s to train, validate and test, got {sizes[:3]}")
    if level == "word" and sizes != OFFICIAL.get(name, sizes):
        raise CorruptFile(f"{source} must hold {OFFICIAL[name]} words (training, validation, test, different ones), "
                          f"got {sizes}: download it again, or rename the folder if it is other data")
    return Text(name, level, len(numbers), parts[0], parts[SPLITS.index(split)])


def _check(level: str, split: str) -> None:
    if level not in LEVELS or split not in SPLITS[1:]:
        raise InvalidArgument(f"level must be word or char and split valid or test, got {level!r} and {split!r}")


def _words(text: str) -> Iterable[str]:
    lines = text.split("\n")
    if not lines[-1].strip():
        lines.pop()
    return chain.from_iterable((*line.split(), END) for line in lines)


def _numbers(symbols: Iterable[str], numbers: dict[str, int]) -> np.ndarray:
    found = array("i", (numbers.setdefault(symbol, len(numbers)) for symbol in symbols))
    return np.array(found, np.int32)


def _generate(source: str, split: str) -> Text:
    """Words each of which has few that follow it often, and seldom any: half of it can be foreseen."""
    wanted = generator_options.options(source, _DEFAULTS)
    rng = np.random.default_rng(wanted["seed"])
    symbols = wanted["symbols"]
    following = rng.integers(symbols, size=(symbols, _SUCCESSORS))

    def drawn(n: int) -> np.ndarray:
        often, which, seldom = rng.random(n) < 0.8, rng.integers(_SUCCESSORS, size=n), rng.integers(symbols, size=n)
        found = array("i", [0])
        for one, at, other in zip(often[1:].tolist(), which[1:].tolist(), seldom[1:].tolist(), strict=True):
            found.append(int(following[found[-1], at]) if one else other)
        return np.array(found, np.int32)

    tokens = wanted["tokens"]
    sizes = max(2, tokens), max(2, tokens // 10), max(2, tokens // 10)
    parts = [drawn(size) for size in sizes[: SPLITS.index(split) + 1]]  # the test text is drawn last
    return Text(source, "word", symbols, parts[0], parts[-1])
