"""In the place of CuPy's ``cupy.random._generator_api``, whose CUDA code is compiled in: draws in host memory."""

from __future__ import annotations

import cupy
import numpy as np


def init_curand(generator, state, seed, size) -> None:
    """The state on the device is not used."""


class FeistelBijection:
    """Only to be imported."""


class Generator:
    """CuPy's random generator, as far as tests/gpu use it."""

    def __init__(self, bit_generator) -> None:
        self._rng = np.random.default_rng(0)

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        assert out is None
        return cupy.asarray(self._rng.standard_normal(size, np.dtype(dtype).type))

    def random(self, size=None, dtype=np.float64, out=None):
        assert out is None
        return cupy.asarray(self._rng.random(size, np.dtype(dtype).type))
