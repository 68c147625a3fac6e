"""PyTorch: compressed averaging of a model's gradients while the backward pass goes on.

``DistributedOptimizer`` wraps any optimizer; ``ddp_hook`` brings a scheme to DistributedDataParallel, ``compress`` to
models that ``fully_shard`` has sharded; ``OneBitAdam`` and ``ZeroOneAdam`` exchange momenta; ``DiLoCo`` averages models
every so many steps. The import registers the backend ``mpicomp`` of ``torch.distributed``. Nothing else in this library
imports torch.
"""

from __future__ import annotations

from ..errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtra("mpicomp.torch needs PyTorch: pip install 'mpicomp[torch]'") from error

from .adam import OneBitAdam, ZeroOneAdam
from .backend import register
from .broadcast import broadcast_optimizer_state, broadcast_parameters
from .ddp import ddp_hook
from .diloco import DiLoCo
from .fsdp import compress
from .optim import LAMB, LARS, SAM
from .optimizer import DistributedOptimizer

register()

__all__ = [
    "LAMB", "LARS", "SAM", "DiLoCo", "DistributedOptimizer", "OneBitAdam", "ZeroOneAdam", "broadcast_optimizer_state",
    "broadcast_parameters", "compress", "ddp_hook",
]
