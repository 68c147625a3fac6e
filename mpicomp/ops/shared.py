"""The compiled executor of `mpicomp.allreduce.node_shared`: kernels, counters and waits on memory that ranks share."""

from __future__ import annotations

from ._cpu import LINE_BYTES, NodeWindow, has_kernel, plain_nbytes

__all__ = ["LINE_BYTES", "NodeWindow", "has_kernel", "plain_nbytes"]
