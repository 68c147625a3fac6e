"""LIBSVM text: one row a line, ``label index:value index:value ... # comment``, indices from 1, ascending."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mpicomp.errors import CorruptFile

from . import compressed_files
from .matrix import Matrix, Sparse, compact

_MOST_COLUMNS = 2**31 - 1
_DIGITS = 19  # of an index: int() of thousands takes long, or refuses
_LONGEST_LINE = 1 << 28  # bytes: a compressed file of a kilobyte may hold a line of a megabyte, and so on
# A vector of so many features is made whatever the file holds; beyond, it must hold a number for every thousandth.
_FREE_COLUMNS, _COLUMNS_A_NUMBER = 1 << 26, 1000


class _Fault(Exception):
    """Fault in a field of a line: the message, and the field's number from 0."""


def read(path: Path) -> tuple[Matrix, np.ndarray]:
    """Features and labels of a LIBSVM file, plain or compressed by gzip, bzip2 or xz.

    Raises
    ------
    CorruptFile
        Naming line and column of the first fault.
    """
    labels, values, columns, offsets = array("d"), array("d"), array("q"), array("q", [0])
    for number, line in _lines(path):
        fields = line.split()
        try:
            labels.append(_finite(fields[0], 0, "a label"))
            _read_pairs(fields, columns, values)
        except _Fault as fault:
            raise CorruptFile(_place(path, number, line, *fault.args)) from None
        offsets.append(len(values))
    if not labels:
        raise CorruptFile(f"{path} has no rows; expected LIBSVM text: label index:value index:value ...")
    width = max(columns, default=-1) + 1
    if not width:
        raise CorruptFile(f"{path} has labels but no features; expected lines like: +1 3:0.5 7:1")
    if width > max(_FREE_COLUMNS, _COLUMNS_A_NUMBER * len(values)):
        raise CorruptFile(f"{path} has {len(values)} numbers but an index of {width}: number the features from 1 on")
    rows = Sparse(np.array(values), np.array(columns), np.array(offsets), width)
    return compact(rows), np.array(labels)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines with something on them, comments cut off."""
    number = 0
    with open(path, "rb") as raw, compressed_files.unpacked(raw) as text:
        try:
            for number, line in enumerate(iter(partial(text.readline, _LONGEST_LINE), b""), 1):
                if len(line) == _LONGEST_LINE:
                    raise CorruptFile(f"{path}, line {number} has {_LONGEST_LINE} bytes or more; expected a row a line")
                content = line.partition(b"#")[0].rstrip()
                if content:
                    yield number, content
        except compressed_files.BROKEN as error:
            raise CorruptFile(f"{path} breaks off or is damaged after line {number}: {error}; copy it again") from error


def _read_pairs(fields: list[bytes], columns: array[int], values: array[float]) -> None:
    """Append the ``index:value`` pairs of one line, columns counted from 0."""
    previous = -1
    for place, field in enumerate(fields[1:], 1):
        index, colon, value = field.partition(b":")
        if not colon or not index.isdigit() or len(index) > _DIGITS:
            raise _Fault(f"expected index:value, got {_quoted(field)}", place)
        column = int(index) - 1
        if not previous < column < _MOST_COLUMNS:
            raise _Fault(f"expected an index of {previous + 2} to {_MOST_COLUMNS}, ascending, got {column + 1}", place)
        values.append(_finite(value, place, "a number after the colon"))
        columns.append(column)
        previous = column


def _finite(text: bytes, place: int, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or b"_" in text:  # float() takes 1_000, the format does not
        raise _Fault(f"expected {expected} (finite), got {_quoted(text)}", place)
    return number


def _place(path: Path, number: int, line: bytes, text: str, place: int) -> str:
    """The fault with its line and the column (from 1) in which its field begins."""
    starts = [match.start() for match in re.finditer(rb"\S+", line)]
    return f"{path}, line {number}, column {starts[place] + 1}: {text}"


def _quoted(field: bytes) -> str:
    text = field.decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
