"""Imported before torch: skips the test file, with the reason, where there is none."""

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")
