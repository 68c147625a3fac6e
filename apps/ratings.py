"""Ratings by user and item: MovieLens files in their three forms, and a generator of synthetic ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument

from . import compressed_files, generator_options
from .data import read_once

NAMES = ("u.data", "ratings.dat", "ratings.csv")  # in the folders ml-100k; ml-1m, ml-10m; ml-20m, ml-latest
FIELDS = "user, item, rating, timestamp"
HEADER = b"userId,movieId,rating,timestamp"
_LARGEST = 1 << 53  # from here on, a float64 does not hold every whole number: times would lose their order
_CHARACTERS = b"0123456789+-.eE,:\t\r\n "  # of numbers and what is between them
_BLOCK = 4096  # lines
_DEFAULTS = {"users": 200, "items": 300, "each": 12, "seed": 0}
_TASTES = 4  # of the made-up people: so many directions


class Ratings(NamedTuple):
    """Pairs of user and item, numbered from 0, in order of users; the last of each user's is held out.

    Attributes
    ----------
    users, items : int
        How many there are.
    train_users, train_items : numpy.ndarray of int64
        The pairs to train on, ascending by user, then item.
    test_users, test_items : numpy.ndarray of int64
        Each user's latest pair; users with one pair only have none.
    """

    name: str
    users: int
    items: int
    train_users: np.ndarray
    train_items: np.ndarray
    test_users: np.ndarray
    test_items: np.ndarray

    def facts(self) -> dict[str, Any]:
        """Facts that distinguish this data from other data."""
        crc = 0
        for part in self[3:]:
            crc = crc32(part.data, crc)
        return {"name": self.name, "users": self.users, "items": self.items, "rows": len(self.train_users),
                "test": len(self.test_users), "crc32": crc}  # fmt: skip


def load(source: str) -> Ratings:
    """Read or make what ``source`` names.

    Parameters
    ----------
    source : str
        ``u.data`` (fields between tabs), ``ratings.dat`` (between ``::``) or ``ratings.csv`` (with a header), told by
        the first line; plain, gzip, bzip2 or xz; a folder that holds one of them; or
        ``synthetic:users=200,items=300,each=12,seed=0``.

    Raises
    ------
    CorruptFile, InvalidArgument
        Naming file and line, the expected content and the one found.
    """
    if source.partition(":")[0] == "synthetic":
        return held_out(source, _columns(generate(source), source), source)
    path = Path(source)
    found = compressed_files.find(path, NAMES) if path.is_dir() else path if path.is_file() else None
    if found is None:
        raise InvalidArgument(f"no ratings in {source!r}: expected {', '.join(NAMES)} or a folder with one of them, or "
                              "synthetic:users=200,items=300,each=12,seed=1 to go without")
    columns = _columns(compressed_files.read(found), str(found))
    return held_out((path if path.is_dir() else found).resolve().name, columns, source)


def share(comm: Any, source: str) -> Ratings:
    """The ratings on every rank, read by rank 0 alone (collective).

    Raises
    ------
    The error of ``load``, on every rank.
    """
    return read_once(comm, lambda: load(source))


def held_out(name: str, columns: np.ndarray, source: str) -> Ratings:
    """Number users and items, and hold out the latest pair of each user (He et al. 2017, section 4.1).

    Of a pair that is there twice the latest counts; of pairs of the same time, the one further on in the file is later.
    """
    found, users = np.unique(columns[:, 0], return_inverse=True)
    known, items = np.unique(columns[:, 1], return_inverse=True)
    pairs = users * known.size + items
    order = np.lexsort((np.arange(pairs.size), columns[:, 3], pairs))
    latest = order[np.append(np.diff(pairs[order]) != 0, True)]  # of each pair; ascending by pair
    users, items, times = users[latest], items[latest], columns[latest, 3]
    order = np.lexsort((latest, times, users))
    last = np.append(np.diff(users[order]) != 0, True)
    alone = np.bincount(users, minlength=found.size) == 1
    test = np.sort(order[last & ~alone[users[order]]])
    if not test.size:
        raise CorruptFile(f"{source} must hold at least 2 ratings of some user, got {columns.shape[0]} ratings of "
                          f"{found.size} users")
    train = np.setdiff1d(np.arange(users.size), test)
    return Ratings(name, found.size, known.size, users[train], items[train], users[test], items[test])


def _columns(content: bytes, name: str) -> np.ndarray:
    """The four fields of every line, float64, shape (n, 4)."""
    start = content[:4096].partition(b"\n")[0]
    header = start.rstrip() == HEADER
    separator = next((one for one in (b"::", b"\t", b",") if one in start), None)
    if separator is None:
        raise CorruptFile(f"{name}, line 1: expected {FIELDS} between tabs, commas or ::, got {_shown(start)}")
    body = content[content.index(b"\n") + 1 :] if header and b"\n" in content else b"" if header else content
    try:
        columns = _parsed(body, separator)
    except ValueError:
        raise _first_fault(body, separator, 1 + header, name) from None
    if not len(columns):
        raise CorruptFile(f"{name} holds no ratings; expected lines of {FIELDS}")
    if columns.shape[1] != 4 or not _sound(columns).all():
        raise _first_fault(body, separator, 1 + header, name)
    return columns


def _parsed(body: bytes, separator: bytes) -> np.ndarray:
    """All numbers of a body of lines, by NumPy's compiled reader; ValueError names no line of the file."""
    if body.translate(None, _CHARACTERS) or (separator == b"::" and (b"\t" in body or b":::" in body)):
        raise ValueError("a character that may not stand here")
    lines = body.replace(b"::", b"\t") if separator == b"::" else body
    delimiter = "\t" if separator == b"::" else separator.decode()
    if not lines.strip(b"\r\n"):
        return np.empty((0, 4))
    return np.loadtxt(io.BytesIO(lines), delimiter=delimiter, comments=None, ndmin=2, encoding="latin-1")


def _sound(columns: np.ndarray) -> np.ndarray:
    """Return True for each row of numbers below 2**53 that begins with two whole ones."""
    ids = columns[:, :2]
    whole = (ids >= 0) & (ids == np.floor(ids))
    return whole.all(axis=1) & (np.abs(columns) < _LARGEST).all(axis=1)


def _first_fault(body: bytes, separator: bytes, first: int, name: str) -> CorruptFile:
    """Find the first wrong line: block by block, then line by line in the block that holds one."""
    lines = body.split(b"\n")
    begin = next((at for at in range(0, len(lines), _BLOCK) if not _fine(lines[at : at + _BLOCK], separator)), 0)
    wrong = next((at for at in range(begin, len(lines)) if not _fine(lines[at : at + 1], separator)), begin)
    expected = {b"\t": "tabs", b",": "commas"}.get(separator, "::")
    return CorruptFile(f"{name}, line {first + wrong}: expected {FIELDS} between {expected}, all numbers below "
                       f"2**53, the first two whole, got {_shown(lines[wrong])}")


def _fine(lines: list[bytes], separator: bytes) -> bool:
    try:
        rows = _parsed(b"\n".join(lines), separator)
    except ValueError:
        return False
    return rows.shape[1] == 4 and bool(_sound(rows).all())


def _shown(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace")) + "..." * (len(line) > 60)


def generate(source: str) -> bytes:
    """Ratings as in ml-100k: people and items with tastes, who rate what is near them, ``each`` a user."""
    wanted = generator_options.options(source, _DEFAULTS, most=1 << 20)
    users, items, each = (wanted[name] for name in ("users", "items", "each"))
    if each < 2 or each > items or users * items > 1 << 28:
        raise InvalidArgument(f"synthetic ratings need each of 2 to items, and users times items of at most {1 << 28}, "
                              f"got {source!r}")
    rng = np.random.default_rng(wanted["seed"])
    people, things = rng.standard_normal((users, _TASTES)), rng.standard_normal((items, _TASTES))
    lines = []
    for user in range(users):
        liking = 2 * things @ people[user] + rng.gumbel(size=items)
        chosen = rng.permutation(np.argpartition(-liking, each - 1)[:each])
        stars = np.clip(np.rint(3 + liking[chosen] / 4), 1, 5).astype(int)
        lines += [f"{user + 1}\t{item + 1}\t{star}\t{880_000_000 + 60 * place + user}\n"
                  for place, (item, star) in enumerate(zip(chosen.tolist(), stars.tolist(), strict=True))]  # fmt: skip
    return "".join(lines).encode()
