"""MATLAB files: a feature matrix and a label vector, as in the collections of feature-selection data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpicomp.errors import CorruptFile, MissingExtra

from .matrix import Dense, Matrix, Sparse, compact

_FEATURES = ("X", "A", "data", "features", "fea")
_LABELS = ("Y", "y", "labels", "label", "gnd")


def read(path: Path) -> tuple[Matrix, np.ndarray]:
    """Features and labels of a ``.mat`` file (version 4 to 7.2)."""
    content = _load(path)
    features = _one_of(content, _FEATURES, path)
    labels = np.asarray(_one_of(content, _LABELS, path), np.float64).ravel()
    if features.ndim != 2 or features.shape[0] != labels.size:
        raise CorruptFile(
            f"{path}: expected a row of features a label, got features of shape {features.shape}, {labels.size} labels"
        )
    return _matrix(features), labels


def _load(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtra(f"reading {path.name} needs SciPy; install it with: pip install 'mpicomp[data]'") from error
    try:
        return {name: value for name, value in loadmat(path).items() if not name.startswith("__")}
    except NotImplementedError as error:
        raise CorruptFile(f"{path} is a MATLAB 7.3 file; save it with: save('-v7', ...)") from error
    except Exception as error:  # SciPy raises whatever its parser runs into
        raise CorruptFile(f"{path} is no readable MATLAB file: {error}") from error


def _one_of(content: dict[str, Any], names: tuple[str, ...], path: Path) -> Any:
    for name in names:
        if name in content:
            return content[name]
    raise CorruptFile(f"{path}: expected a variable named {' or '.join(names)}, found {', '.join(content) or 'none'}")


def _matrix(features: Any) -> Matrix:
    if isinstance(features, np.ndarray):
        return Dense(np.ascontiguousarray(features, np.float64))
    rows = features.tocsr()
    rows.sum_duplicates()
    return compact(Sparse(rows.data.astype(np.float64), rows.indices.astype(np.int64),
                          rows.indptr.astype(np.int64), rows.shape[1]))
