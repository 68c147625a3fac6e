"""A folder in memory, where every input overwrites the one before."""

import tempfile
from pathlib import Path

import pytest
from fuzz import shared_memory


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(prefix="mpicomp-generated-", dir=shared_memory()) as folder:
        yield Path(folder)
