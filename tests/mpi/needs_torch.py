"""Imported before torch: skips the test file, with the reason, where PyTorch is missing or the ranks are many.

Three ranks show what eight would; eight processes that load PyTorch at once take half a minute on two cores.
"""

import pytest
from mpi4py import MPI

MOST_RANKS = 3

if MPI.COMM_WORLD.size > MOST_RANKS:
    pytest.skip(f"runs on up to {MOST_RANKS} ranks", allow_module_level=True)
pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")
