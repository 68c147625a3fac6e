"""PyTorch models as tasks of the common loop: NumPy sees their parameters and gradients without a copy.

The apps that need PyTorch find it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpicomp.errors import MissingExtra

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    raise MissingExtra("this app needs PyTorch: pip install 'mpicomp[torch]'") from error

__all__ = ["TorchModel", "functional", "nn", "seeded", "torch"]


class TorchModel:
    """A network and what the loop wants of it.

    Parameters
    ----------
    make : callable
        Makes the network.
    seed : int
        Of its initial weights.

    Attributes
    ----------
    network : torch.nn.Module
    parameters : dict of str to numpy.ndarray
        The network's own memory.
    """

    def __init__(self, make: Callable[[], nn.Module], seed: int) -> None:
        torch.set_num_threads(1)  # a rank has a core, and the bits do not depend on how many there are
        with seeded(seed):
            self.network = make()
        self._tensors = dict(self.network.named_parameters())
        self.parameters = {name: one.detach().numpy() for name, one in self._tensors.items()}

    def gradients_of(self, loss: torch.Tensor) -> tuple[float, dict[str, Any]]:
        """A loss as a number, and its gradient by the parameters' names."""
        found = torch.autograd.grad(loss, list(self._tensors.values()))
        return loss.item(), {name: one.contiguous().numpy() for name, one in zip(self._tensors, found, strict=True)}


@contextmanager
def seeded(seed: int, *what_for: int) -> Iterator[None]:
    """PyTorch's random numbers by seed and purpose alone: the same on any rank, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        mixed = np.random.SeedSequence([seed, *what_for]).generate_state(1, np.uint64)
        torch.manual_seed(int(mixed[0]) if what_for else seed % (1 << 64))
        yield
