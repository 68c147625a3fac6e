"""The compiled executor of `mpicomp.allreduce.node_shared`, kernels, counters and waits on memory that ranks share; and
the short way of small all-reduces.
"""

from __future__ import annotations

from . import extension  # noqa: F401  (before what it looks for)
from ._cpu import LINE_BYTES, NodeWindow, PlainCalls, has_kernel, plain_nbytes

__all__ = ["LINE_BYTES", "NodeWindow", "PlainCalls", "has_kernel", "plain_nbytes"]
