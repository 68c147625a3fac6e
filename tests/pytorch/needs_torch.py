"""Imported before torch: skips the test file, with the reason, if there is none."""

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")
