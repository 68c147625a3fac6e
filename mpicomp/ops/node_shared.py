"""The compiled executor of `mpicomp.allreduce.node_shared`, kernels, counters and waits on memory that ranks share; and
the short way of small all-reduces. Without the extension there is neither: other schedules run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .extension import AVAILABLE

if TYPE_CHECKING or AVAILABLE:
    from ._cpu import LINE_BYTES, NodeWindow, PlainCalls, has_kernel, plain_nbytes
else:
    from .not_compiled import LINE_BYTES, NodeWindow, PlainCalls, has_kernel, plain_nbytes

__all__ = ["LINE_BYTES", "NodeWindow", "PlainCalls", "has_kernel", "plain_nbytes"]
