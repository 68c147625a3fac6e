"""Fields for the error-bounded all-reduce, generated or from a file, different on each rank."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidArgument
from .plan import BOUNDED_DTYPES, FILE, Plan

WAVES = 8  # of a smooth field
LONGEST_SIDE = 256  # of a generated cube; longer vectors repeat it


def field(plan: Plan, n: int, rank: int, size: int) -> np.ndarray:
    """One rank's field of ``n`` elements in memory order.

    Generated fields are cubes with about ``n`` elements and a seed per rank. A field from a file is shifted along its
    first axis, by ``rank`` of ``size`` parts of its length.
    """
    dtype = np.dtype(plan.dtype)
    if plan.data.endswith(FILE):
        whole = read_field(plan.data, plan.dtype, n)
        shifted = np.roll(whole, rank * len(whole) // size, axis=0).reshape(-1, order="A")  # as it lies in memory
        return np.ascontiguousarray(shifted[:n], dtype)  # of this machine's byte order
    rng = np.random.default_rng([plan.seed, rank])
    if plan.data == "noise":
        return rng.standard_normal(n, dtype)
    side = next(side for side in range(1, LONGEST_SIDE + 1) if side**3 >= n or side == LONGEST_SIDE)
    make = {"smooth": smooth, "turbulence": turbulence}[plan.data]
    return np.resize(make(rng, side, dtype), n)


def smooth(rng: np.random.Generator, side: int, dtype: np.dtype) -> np.ndarray:
    """Sum of plane waves with the wave numbers 1 to 8 in random directions; energy k^-5/3."""
    axes = np.meshgrid(*[np.linspace(0, 1, side, dtype=dtype)] * 3, indexing="ij", sparse=True)
    made = np.zeros((side,) * 3, dtype)
    for k in range(1, WAVES + 1):
        direction = rng.normal(size=3)
        waves = k * direction / np.linalg.norm(direction)
        angle = sum(dtype.type(2 * np.pi * wave) * axis for wave, axis in zip(waves, axes, strict=True))
        made += dtype.type(k ** (-5 / 6)) * np.sin(angle + dtype.type(rng.uniform(0, 2 * np.pi)))
    return made


def turbulence(rng: np.random.Generator, side: int, dtype: np.dtype) -> np.ndarray:
    """All waves of a periodic cube with random amplitudes and phases; energy of a shell of wave numbers k^-5/3."""
    noise = np.fft.rfftn(rng.standard_normal((side,) * 3, dtype))
    whole, half = np.fft.fftfreq(side, 1 / side), np.fft.rfftfreq(side, 1 / side)
    squares = whole[:, None, None] ** 2 + whole[:, None] ** 2 + half**2
    squares[0, 0, 0] = np.inf  # no mean
    noise *= squares ** (-11 / 12)  # a shell of radius k has about k^2 waves: amplitude k^(-5/6 - 1)
    made: np.ndarray = np.fft.irfftn(noise, (side,) * 3, axes=(0, 1, 2))
    return (made / made.std() if side > 1 else made).astype(dtype, copy=False)


def read_field(path: str, dtype: str, n: int = 0) -> np.ndarray:
    """Map the array in a .npy file.

    Raises
    ------
    InvalidArgument
        The file is no .npy file, has another dtype, no elements, or fewer than ``n``.
    OSError
        It cannot be read.
    """
    try:
        found = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, SyntaxError) as error:
        raise InvalidArgument(f"{path} holds no array of numbers: {error}; write it with numpy.save") from error
    if found.dtype.name not in BOUNDED_DTYPES:
        raise InvalidArgument(f"{path} must hold float32 or float64 for an error bound, got {found.dtype}: convert it")
    if found.dtype.name != dtype:
        raise InvalidArgument(f"{path} holds {found.dtype}: give --dtype {found.dtype.name}")
    if found.size == 0:
        raise InvalidArgument(f"{path} holds no elements: its shape is {found.shape}")
    if n > found.size:
        raise InvalidArgument(f"{path} holds {found.nbytes} bytes, fewer than the size {n * found.itemsize}: give "
                              "smaller sizes, or none to take the whole field")
    return found.reshape(-1) if found.ndim == 0 else found
