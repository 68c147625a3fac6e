"""MATLAB files: a feature matrix and a label vector, as in the collections of feature-selection data."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from mpicomp.errors import CorruptFile, MissingExtra

from .matrix import Dense, Matrix, Sparse, compact

CHILD = Path(__file__).with_name("read_matlab.py")


def read(path: Path) -> tuple[Matrix, np.ndarray]:
    """Features and labels of a ``.mat`` file (version 4 to 7.2), read by a child process: see read_matlab.py.

    Raises
    ------
    CorruptFile
        The file holds no such matrices, or crashes its reader.
    """
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtra(f"reading {path.name} needs SciPy; install it with: pip install 'mpicomp[data]'")
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # each thread of it would reserve memory
    child = subprocess.run([sys.executable, str(CHILD), str(path)], capture_output=True, env=alone)
    if child.returncode == 1:
        raise CorruptFile(f"{path}: {child.stderr.decode(errors='replace').strip().splitlines()[-1]}")
    if child.returncode:
        raise CorruptFile(f"{path} is damaged: its reader ended with {child.returncode}; copy or save it again")
    arrays = _arrays(child.stdout)
    labels = arrays.pop()
    if len(arrays) == 1:
        return Dense(arrays[0]), labels
    values, columns, offsets, shape = arrays
    return compact(Sparse(values, columns, offsets, int(shape[1]))), labels


def _arrays(content: bytes) -> list[np.ndarray]:
    stream, arrays = io.BytesIO(content), []
    while stream.tell() < len(content):
        arrays.append(np.lib.format.read_array(stream, allow_pickle=False))
    return arrays
