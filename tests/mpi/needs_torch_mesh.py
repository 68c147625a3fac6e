"""Imported before torch: skips the test file, with the reason, if PyTorch is missing or there are too many ranks.

As ``needs_torch``, with four ranks, the fewest that make a mesh of replicas and shards.
"""

import pytest
from mpi4py import MPI

RANKS = (2, 3, 4)

if MPI.COMM_WORLD.size not in RANKS:
    pytest.skip(f"runs on {', '.join(map(str, RANKS[:-1]))} or {RANKS[-1]} ranks", allow_module_level=True)
pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")
