"""Result files: JSON, CSV or HDF5 by the suffix, written and read back.

A document has facts about the run, and ``rows`` with the columns of `rows.FIELDS`; CSV has the rows alone. A column
that does not apply is null in JSON, empty in CSV, and in HDF5 the value of its attribute ``missing``.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from .._util.subprocesses import python
from ..errors import DAMAGE, CorruptFile, InvalidArgument
from .schema import FIELDS, Document, Row, full

FORMAT = "mpicomp-bench"
VERSION = 1
READING_S = 20  # limit for a result in HDF5: some hundred rows
SUFFIXES = (".json", ".csv", ".h5", ".hdf5")


def check_suffix(path: str | Path) -> str:
    """The suffix of ``path``, or InvalidArgument."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"a result file ends in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    return suffix


def write(path: Path, document: Document, suffix: str) -> None:
    """Write ``document`` to the new file ``path`` in the form of ``suffix``."""
    if suffix == ".json":
        path.write_text(json.dumps(document, indent=1) + "\n")
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            write_csv(file, document["rows"])
    else:
        from .hdf5 import write as write_hdf5

        write_hdf5(path, document)


def write_csv(file: TextIO, rows: Sequence[Row], title: bool = True) -> None:
    """Write rows as CSV, with or without the line of titles."""
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    if title:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items() if name in FIELDS})


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else value


def read(path: str | Path) -> Document:
    """The document in ``path``.

    Raises
    ------
    InvalidArgument
        The suffix is not one of SUFFIXES.
    CorruptFile
        The contents do not match the suffix, or are not those of a bench.
    OSError
        The file cannot be read.
    """
    suffix = check_suffix(path)
    with open(path, "rb"):  # raises the system's error for a file that is missing or not readable
        pass
    try:
        document = _READERS[suffix](Path(path))
        rows = [_checked(full(row)) for row in document["rows"]]
        _check_head(document)
    except DAMAGE as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CorruptFile(f"{path} holds no result of mpicomp bench: {what}") from error
    if document.get("format") != FORMAT:
        raise CorruptFile(f"{path} holds no result of mpicomp bench: expected format {FORMAT!r}, got "
                          f"{document.get('format')!r}")  # fmt: skip
    return {**document, "rows": rows}


def _checked(row: Row) -> Row:
    """The row, if every column has its type, numbers are finite, and time and size are above zero."""
    for name, value in row.items():
        kind, optional = FIELDS[name].kind, FIELDS[name].optional
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or type(value) is not bool)
        if isinstance(value, (int, float)):
            fits = fits and math.isfinite(value)
        if not fits and not (value is None and optional):
            raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    if min(row["t_med_us"], row["nbytes"], 1 if row["launches"] is None else row["launches"]) <= 0:
        raise ValueError("times, sizes and launches must be above zero")
    return row


def _check_head(document: Document) -> None:
    """Check the facts beside the rows that comparing and merging use."""
    ranks, noise = document.get("ranks", []), document.get("noise") or {}
    if not isinstance(ranks, list) or not all(isinstance(one["host"], str) for one in ranks):
        raise ValueError("ranks must be a list of facts with a host")
    for one in (noise, *noise.values()):
        if isinstance(one, dict) and not isinstance(one.get("foreign_cpu_share", 0.0), (int, float, type(None))):
            raise ValueError("the share of the CPUs that others used must be a number")


def _read_csv(path: Path) -> Document:
    with path.open(newline="") as file:
        rows = [full({name: _value(name, text) for name, text in row.items() if name in FIELDS})
                for row in csv.DictReader(file)]  # fmt: skip
    return {"format": FORMAT, "version": VERSION, "rows": rows}


def _value(name: str, text: str) -> object:
    kind = FIELDS[name].kind
    if text == "":
        return None
    if kind is bool:
        return {"true": True, "false": False}[text]
    return json.loads(text) if kind is dict else kind(text)


def _read_hdf5(path: Path) -> Document:
    """Read in a child process: HDF5 may crash on a damaged file, or never return."""
    command = [*python("from mpicomp.bench import hdf5; hdf5.main()"), str(path)]
    try:
        child = subprocess.run(command, capture_output=True, timeout=READING_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"HDF5 did not read it within {READING_S} s") from None
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"its reader ended with {child.returncode}")
    document: Document = json.loads(child.stdout)
    return document


_READERS: dict[str, Callable[[Path], Document]] = {
    ".json": lambda path: json.loads(path.read_text()), ".csv": _read_csv, ".h5": _read_hdf5, ".hdf5": _read_hdf5,
}  # fmt: skip
