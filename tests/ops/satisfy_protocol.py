"""The array modules as mypy sees them: tests/check_types.py checks this file with the package."""

from __future__ import annotations

from mpicomp.ops import Ops, cpu, gpu, oracle

ORACLE: Ops = oracle
CPU: Ops = cpu
GPU: Ops = gpu
