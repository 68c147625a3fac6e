"""Checks of steps that are refused or skipped."""

import numpy as np
import pytest

from mpicomp.errors import NonFiniteGradient


def assert_nan_is_refused(reducer, n):
    """A step with NaN in the last of n elements on the last rank raises or is skipped, as the reducer's policy says."""
    bad = np.ones(n, np.float32)
    if reducer.comm.rank == reducer.comm.size - 1:
        bad[n - 1] = np.nan
    if reducer.nonfinite == "raise":
        with pytest.raises(NonFiniteGradient, match=f"gradient.*{n - 1}.*nan"):
            reducer.reduce(bad)
    else:
        assert not reducer.reduce(bad).any()
        assert reducer.stats.skipped
