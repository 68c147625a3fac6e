"""Results as files: JSON, CSV or HDF5 by the suffix, written and read back.

A document is a dict: what is said about the run, and ``rows``, each with the columns of `rows.FIELDS`. CSV holds the
rows alone. What does not apply is null in JSON, empty in CSV, and in HDF5 what the column's attribute ``missing`` says.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
from pathlib import Path
from typing import Any

from .._util.subprocesses import python
from ..errors import DAMAGE, CorruptFile, InvalidArgument
from .rows import FIELDS, full

FORMAT = "mpicomp-bench"
VERSION = 1
READING_S = 20  # for a result in HDF5: some hundred rows
SUFFIXES = (".json", ".csv", ".h5", ".hdf5")


def check_suffix(path: str | Path) -> str:
    """The suffix of ``path``, or InvalidArgument."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"a result file ends in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    return suffix


def write(path: Path, document: dict[str, Any], suffix: str) -> None:
    """Write ``document`` to the new file ``path`` in the form of ``suffix``."""
    if suffix == ".json":
        path.write_text(json.dumps(document, indent=1) + "\n")
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            write_csv(file, document["rows"])
    else:
        from .hdf5 import write as write_hdf5

        write_hdf5(path, document)


def write_csv(file: Any, rows: list[dict[str, Any]], title: bool = True) -> None:
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    if title:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items() if name in FIELDS})


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else value


def read(path: str | Path) -> dict[str, Any]:
    """The document in ``path``.

    Raises
    ------
    InvalidArgument
        The suffix says none of the forms above.
    CorruptFile
        The file is not what its suffix promises, or has no rows of a bench.
    OSError
        It cannot be read.
    """
    suffix = check_suffix(path)
    with open(path, "rb"):  # its own words for a file that is missing or not ours to read
        pass
    try:
        document = _READERS[suffix](Path(path))
        rows = [_checked(full(row)) for row in document["rows"]]
        _check_head(document)
    except DAMAGE as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CorruptFile(f"{path} holds no result of mpicomp bench: {what}") from error
    if document.get("format") != FORMAT or any(not (row["t_med_us"] and row["nbytes"]) for row in rows):
        raise CorruptFile(f"{path} holds no result of mpicomp bench: expected format {FORMAT!r} and rows with times")
    return {**document, "rows": [_as_now(row) for row in rows]}


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """The row, where every column is of its kind, and numbers are finite; its time and size must be above zero."""
    for name, value in row.items():
        kind = FIELDS[name].kind
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or type(value) is not bool)
        if value is not None and not (fits and (kind not in (int, float) or math.isfinite(value))):
            raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    if min(row["t_med_us"] or 1, row["nbytes"] or 1, row["launches"] or 1) <= 0:
        raise ValueError("times, sizes and launches must be above zero")
    return row


def _check_head(document: dict[str, Any]) -> None:
    """What comparing and merging look at beside the rows."""
    ranks, noise = document.get("ranks", []), document.get("noise") or {}
    if not isinstance(ranks, list) or not all(isinstance(one["host"], str) for one in ranks):
        raise ValueError("ranks must be a list of facts with a host")
    for one in (noise, *noise.values()):
        if isinstance(one, dict) and not isinstance(one.get("foreign_cpu_share", 0.0), (int, float, type(None))):
            raise ValueError("the share of the CPUs that others used must be a number")


def _as_now(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an older file, which said less, as one of today's."""
    return {**row, "part": row["part"] or "step", "root": -1 if row["root"] is None else row["root"]}


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _read_csv(path: Path) -> dict[str, Any]:
    with path.open(newline="") as file:
        rows = [{name: _value(name, text) for name, text in row.items() if name in FIELDS}
                for row in csv.DictReader(file)]  # fmt: skip
    return {"format": FORMAT, "version": VERSION, "rows": rows}


def _value(name: str, text: str) -> Any:
    kind = FIELDS[name].kind
    if text == "":
        return None
    if kind is bool:
        return {"true": True, "false": False}[text]
    return json.loads(text) if kind is dict else kind(text)


def _read_hdf5(path: Path) -> dict[str, Any]:
    """Read by a child process: HDF5 may crash on a damaged file, or never return."""
    command = [*python("from mpicomp.bench import hdf5; hdf5.main()"), str(path)]
    try:
        child = subprocess.run(command, capture_output=True, timeout=READING_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"HDF5 does not come to an end with it in {READING_S} s") from None
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"its reader ended with {child.returncode}")
    return json.loads(child.stdout)


_READERS = {".json": _read_json, ".csv": _read_csv, ".h5": _read_hdf5, ".hdf5": _read_hdf5}
