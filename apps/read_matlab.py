"""Reads a MATLAB file in a process of its own: ``python read_matlab.py FILE`` writes the arrays to standard output.

SciPy's reader trusts what a file says of itself; a damaged one may crash it. Here that costs a child, not the job.
Arrays follow each other in NumPy's format, without pickle: features (dense, or data, indices, indptr and shape) and
labels.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import numpy as np

FEATURES = ("X", "A", "data", "features", "fea")
LABELS = ("Y", "y", "labels", "label", "gnd")
# A vector of so many columns is made whatever the file holds; beyond, it must hold a number for every thousandth.
FREE_COLUMNS, COLUMNS_A_NUMBER = 1 << 26, 1000
MEMORY = 4 << 30  # bytes, and what a compressed file can expand to twice over
EXPANSION = 2100
SECONDS = 3600  # of CPU time


class Refused(Exception):
    """Why the file is no data set."""


def main(path: str) -> None:
    lower(resource.RLIMIT_AS, MEMORY + EXPANSION * os.path.getsize(path))
    lower(resource.RLIMIT_CPU, SECONDS)
    try:
        arrays = read(path)
    except Refused as error:
        sys.exit(str(error))
    except NotImplementedError:  # SciPy's word for this version, which is HDF5
        sys.exit("a MATLAB 7.3 file; save it with: save('-v7', ...)")
    except Exception as error:  # SciPy raises whatever its parser runs into
        sys.exit(f"no readable MATLAB file: {error}")
    for array in arrays:
        np.lib.format.write_array(sys.stdout.buffer, np.ascontiguousarray(array), allow_pickle=False)


def lower(kind: int, limit: int) -> None:
    """Set a limit of this process, but not above the one that the job has."""
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def read(path: str) -> list[np.ndarray]:
    """Features in one array or four, and labels."""
    from scipy.io import loadmat

    content = {name: value for name, value in loadmat(path).items() if not name.startswith("__")}
    features, labels = one_of(content, FEATURES), one_of(content, LABELS)
    if not (is_real(features) and is_real(labels) and isinstance(labels, np.ndarray)):
        raise Refused(f"expected matrices of real numbers, got {type(features).__name__} and {type(labels).__name__}")
    labels = labels.astype(np.float64).ravel()
    if features.ndim != 2 or features.shape[0] != labels.size:
        raise Refused(f"expected a row of features a label, got features of shape {features.shape}, {labels.size} "
                      "labels")
    if isinstance(features, np.ndarray):
        return [features.astype(np.float64), labels]
    if features.shape[1] > max(FREE_COLUMNS, COLUMNS_A_NUMBER * features.nnz):
        raise Refused(f"expected fewer columns, got {features.shape[1]} for {features.nnz} numbers")
    if hasattr(features, "check_format"):  # else indices are followed without a look
        features.check_format(full_check=True)
    rows = features.tocsr()
    rows.sum_duplicates()
    return [rows.data.astype(np.float64), rows.indices.astype(np.int64), rows.indptr.astype(np.int64),
            np.array(rows.shape, np.int64), labels]


def one_of(content: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in content:
            return content[name]
    raise Refused(f"expected a variable named {' or '.join(names)}, found {', '.join(content) or 'none'}")


def is_real(values: Any) -> bool:
    """Return True for an array or a sparse matrix of real numbers, not a struct, a cell array, text, ..."""
    return hasattr(values, "ndim") and getattr(values, "dtype", np.dtype(object)).kind in "biuf"


if __name__ == "__main__":
    main(sys.argv[1])
