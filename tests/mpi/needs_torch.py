"""Imported before torch: skips the test file, with the reason, if PyTorch is missing or there are too many ranks.

Three ranks show what eight would; eight processes that load PyTorch at once take half a minute on two cores.
One rank is the matter of tests/pytorch.
"""

import pytest
from mpi4py import MPI

RANKS = (2, 3)

if MPI.COMM_WORLD.size not in RANKS:
    pytest.skip(f"runs on {' or '.join(map(str, RANKS))} ranks", allow_module_level=True)
pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")
