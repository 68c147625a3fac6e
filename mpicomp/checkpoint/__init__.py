"""Checkpoints: the whole state of a training run on all ranks, whole or absent, and resumed bit for bit.

A checkpoint is a folder with one file per rank, written by all at once, and one file of the state common to all ranks.
(Error memories are as large as the model, once per worker: collected by one rank, they would pass through one network
link and one disk queue.) See :mod:`.folder` for names and completeness, :mod:`.parts` for the files,
:mod:`.redistribute` for another number of ranks.

    >>> import tempfile
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm, root = mpicomp.Comm(MPI.COMM_SELF), tempfile.mkdtemp()
    >>> path = save(comm, root, 7, common={"model": {"w": np.arange(3.0)}})
    >>> saved = load(comm, root)
    >>> saved.step, saved.common["model"]["w"].tolist()
    (7, [0.0, 1.0, 2.0])
    >>> steps(root)
    [7]
"""

from __future__ import annotations

from .folder import check_folder
from .load import Checkpoint, load, load_arrays
from .save import common_result, save, save_arrays, steps

__all__ = ["Checkpoint", "check_folder", "common_result", "load", "load_arrays", "save", "save_arrays", "steps"]
