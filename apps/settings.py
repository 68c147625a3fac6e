"""Settings of a training run besides its data, and the refusal of impossible ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from mpicomp import Scheme
from mpicomp.errors import InvalidArgument

Value = TypeVar("Value")


@dataclass(frozen=True)
class Settings:
    """Settings of a run besides its data."""

    scheme: str = "dense"  # its lam, unit and clip are on the gradient's scale
    workers: int | None = None  # virtual workers over all ranks; default one a rank
    epochs: int = 30
    seed: int = 0  # of the shards and of the sampling
    shift: float = 1e-4  # added to every coordinate of the minimiser gives the starting point
    l2: float | None = None  # default L / 1e4
    step_size: float | None = None  # gamma; default 1 / (L + l2)
    algorithm: str = "auto"  # the dense all-reduce under the scheme
    eval_every: int | None = None  # steps between evaluations; default one epoch
    target_bits: tuple[float, ...] = ()  # evaluate, too, when a worker has sent this many bits

    def check(self, ranks: int, rows: int) -> None:
        """Refuse what cannot be run on so many ranks and rows of data, with InvalidArgument."""
        check_workers(self.workers_on(ranks), ranks)
        _check_shards(self.workers_on(ranks), rows)
        for name, low in (("epochs", 1), ("eval_every", 1), ("seed", 0)):
            at_least(name, getattr(self, name), low)
        for name in ("l2", "step_size"):
            _positive(name, getattr(self, name))
        for bits in self.target_bits:
            _positive("target_bits", bits)
        if not math.isfinite(self.shift):
            raise InvalidArgument(f"shift must be finite, got {self.shift}")
        Scheme.parse(self.scheme)

    def workers_on(self, ranks: int) -> int:
        """The number of virtual workers."""
        return ranks if self.workers is None else self.workers


def check_workers(workers: int, ranks: int) -> None:
    if workers < ranks:
        what_to_do = ": start fewer ranks" if workers > 0 else ""
        raise InvalidArgument(f"workers must be at least {ranks} (one a rank), got {workers}{what_to_do}")


def _check_shards(workers: int, rows: int) -> None:
    if workers > rows:
        raise InvalidArgument(f"workers must be at most the number of rows, {rows}, got {workers}: use fewer workers")


def at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise InvalidArgument(f"{name} must be at least {low}, got {value}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise InvalidArgument(f"{name} must be positive and finite, got {value}")


def known(value: Value | None) -> Value:
    """A setting that has a default which depends on the job, once that is filled in."""
    assert value is not None, "settings are checked, and so written out, before they are used"
    return value
