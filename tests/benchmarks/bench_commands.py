"""Commands of docs/development/measurements.md with ``--quick`` that run anywhere, or on emulated hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv" / "openmpi" / "bin" / "python"
# script -> its arguments, one figure per command where it has figures
ANYWHERE = {
    "figures.py": ["kernel", "ring-node", "shared", "bytes"],
    "bench_allreduce.py": ["node", "small", "step", "buckets"],
    "bench_torch.py": ["overhead"], "bench_diloco.py": ["accuracy"],
    "bench_training.py": ["cnn", "ratings", "transformer"],
    "bench_outside.py": ["native", "recorder"],
    "bench_ops.py": [""], "bench_parts.py": [""], "bench_low_rank.py": [""], "bench_trace.py": [""],
    "bench_adam.py": ["recommend", "language"],
    "bench_checked.py": [""], "bench_steps.py": [""], "../scale/scale.py": [""],
}  # fmt: skip
ON_HOSTS = {
    "figures.py": ["ring-hosts", "scalecom-hosts"],
    "bench_allreduce.py": ["hosts", "schedules", "step-hosts", "buckets-hosts", "segments"],
    "bench_torch.py": ["hosts", "fsdp"], "bench_diloco.py": ["speed"], "bench_training.py": ["steps"],
    # Other rates run the same code, more slowly.
    "bench_cluster.py": ["steps-10gbit", "levels-1gbit", "change", "accuracy-1gbit"],
    "bench_peers.py": ["ddp-10gbit-hosts", "ddp-10gbit-two-hosts"], "bench_bounded.py": [""],
}  # fmt: skip


def cases(commands: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(script, argument) for script, arguments in commands.items() for argument in arguments]


def run_quickly(script: str, argument: str) -> str:
    """Run a command to its end, which must be a good one; what it printed."""
    command = [str(PYTHON if PYTHON.exists() else sys.executable), str(HERE / script), *argument.split(), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr, ended.stderr
    assert not argument or f"### {argument}: " in ended.stdout, ended.stdout
    return ended.stdout
