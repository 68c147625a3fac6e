"""Training settings apart from data and model, and the report of a finished run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mpicomp import Scheme
from mpicomp._util.plurals import count
from mpicomp.errors import InvalidArgument
from mpicomp.optim.optimizers import SGD
from mpicomp.optim.rates import MOST_EPOCHS
from mpicomp.schemes.options import resolve, written

from .settings import at_least, check_workers

OUTER = ("diloco",)  # optimizers of outer steps
OUTER_SETTINGS = ("outer", "every", "fragments", "delay", "outer_lr", "outer_momentum", "merge", "outer_warmup",
                  "outer_warmup_scheme")  # fmt: skip
ADAPTIVE = ("adam", "lamb")
COMMUNICATING = ("onebit-adam", "zero-one-adam")  # optimizers that exchange momenta by themselves


@dataclass(frozen=True)
class LoopSettings:
    """Settings that every app on the common loop has."""

    scheme: str = "dense"
    workers: int | None = None  # virtual workers over all ranks; default one a rank
    batch: int = 32  # rows a worker uses in a step
    epochs: float = 3
    seed: int = 0
    algorithm: str = "auto"  # the dense all-reduce under the scheme
    optimizer: str | None = None  # see mpicomp.optim; default SGD, with momentum 0.9 unless the scheme takes it
    lr: float = 0.05
    schedule: str = "constant"  # of the learning rate, see mpicomp.rates
    warmup: float = 0.0  # epochs in which the learning rate rises to lr, from lr over the number of workers
    compress_warmup: float = 0.0  # epochs in which the density falls to the scheme's own
    sam: float = 0.0  # rho of sharpness-aware minimisation; 0 is off
    rate_factor: bool = False  # multiply lr by what the scheme proposes under Adam
    clip: float = 0.0  # each worker's gradient is cut to a norm of clip * workers^(-1/2); 0 is off
    eval_every: int | None = None  # steps between evaluations; default one epoch
    patience: int | None = None  # stop after so many evaluations without a better metric
    outer: str | None = None  # "diloco": steps by own gradients, and outer steps by the workers' mean difference
    every: int = 30  # with outer steps, see mpicomp.optim.DiLoCo: this one and all below
    fragments: int = 1
    delay: int = 0
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    merge: float | None = None
    outer_warmup: float = 0.0  # epochs of averaged gradients, before
    outer_warmup_scheme: str = "dense"

    def check(self, ranks: int, rows: int) -> None:
        """Refuse what cannot be run on so many ranks and rows of data, with InvalidArgument."""
        workers = ranks if self.workers is None else self.workers
        check_workers(workers, ranks)
        for name, low in (("batch", 1), ("seed", 0), ("eval_every", 1), ("patience", 1)):
            at_least(name, getattr(self, name), low)
        if not 0 < self.epochs <= MOST_EPOCHS:
            raise InvalidArgument(f"epochs must be positive and at most {MOST_EPOCHS:g}, got {self.epochs}")
        for name in ("compress_warmup", "outer_warmup"):
            if not 0 <= getattr(self, name) <= MOST_EPOCHS:
                raise InvalidArgument(f"{name} must be from 0 to {MOST_EPOCHS:g} epochs, got {getattr(self, name)}")
        for name in ("sam", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if workers * self.batch > rows:
            raise InvalidArgument(f"the data must have at least {count(workers * self.batch, 'row')} for "
                                  f"{count(workers, 'worker')} with a batch of {self.batch}, got {rows}: use fewer "
                                  "workers or a smaller batch")
        if self.outer is not None and (self.outer not in OUTER or workers != ranks):
            raise InvalidArgument(f"outer must be {' or '.join(OUTER)}, with one worker per rank, got {self.outer} and "
                                  f"{count(workers, 'worker')} on {count(ranks, 'rank')}")
        if Scheme.parse(self.outer_warmup_scheme).diverges:
            raise InvalidArgument("outer_warmup_scheme must have the same mean on all ranks, got "
                                  f"{self.outer_warmup_scheme}")
        if self.rate_factor and not self.adaptive:
            given = self.optimizer or "sgd" if self.outer is None else f"outer={self.outer}"
            raise InvalidArgument(f"rate_factor is for gradients averaged under {' or '.join(ADAPTIVE)}, got {given}: "
                                  "leave it out, or take one of these optimizers")
        self._check_communicating()
        self._check_momentum()
        self._check_unused()

    @property
    def rate(self) -> float:
        """The learning rate, times the scheme's proposal if that is wanted."""
        return self.lr * (Scheme.parse(self.scheme).rate_factor if self.rate_factor else 1.0)

    @property
    def adaptive(self) -> bool:
        """True if averaged gradients go, in all steps, to an optimizer that divides by the root of a second moment."""
        return self.outer is None and self._divides

    @property
    def scheme_under_adam(self) -> str | None:
        """The scheme of gradients that go to such an optimizer, in all steps or those of a warm-up; None without."""
        averaging = self.scheme if self.outer is None else self.outer_warmup_scheme if self.outer_warmup else None
        return averaging if self._divides else None

    @property
    def _divides(self) -> bool:
        return written(self.optimizer or "sgd")[0] in ADAPTIVE

    def resolved(self, workers: int, steps_per_epoch: int) -> LoopSettings:
        """The same with workers, optimizer and the density's warm-up written out."""
        scheme, optimizer = Scheme.parse(self.scheme), self.optimizer
        if self.compress_warmup:
            if "warmup" not in scheme.options:
                raise InvalidArgument(f"compress_warmup must be 0 for a scheme without the option warmup, got "
                                      f"{self.compress_warmup:g} for {scheme}: leave it out")
            period = 1 if self.outer is None else self.every
            scheme = scheme.replace(warmup=round(self.compress_warmup * steps_per_epoch / period))
        if optimizer is None:
            optimizer = "sgd" if scheme.takes_momentum else "sgd:momentum=0.9"
        return replace(self, workers=workers, optimizer=optimizer, scheme=str(scheme))

    @property
    def communicates(self) -> bool:
        """True if the optimizer takes each worker's gradients and exchanges momenta by itself."""
        return written(self.optimizer or "sgd")[0] in COMMUNICATING

    def _check_communicating(self) -> None:
        given = self._changed("compress_warmup", "outer")
        if self.communicates and given:
            raise InvalidArgument(f"optimizer {self.optimizer} averages by itself and does not work with {given}: "
                                  "leave that out, or take optimizer adam")

    def _check_unused(self) -> None:
        """Refuse settings of outer steps that would be left unread."""
        if self.outer is None:
            needed, given = "outer=diloco", self._changed(*OUTER_SETTINGS)
        else:
            needed, given = "outer_warmup", "" if self.outer_warmup else self._changed("outer_warmup_scheme")
        if given:
            raise InvalidArgument(f"{needed} must be given with {given}, got none: give it, or leave that out")

    def _changed(self, *names: str) -> str:
        """Those of some settings that differ from the defaults, as text."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in names
                         if getattr(self, name) != getattr(LoopSettings, name))

    def _check_momentum(self) -> None:
        name, given = written(self.optimizer or "sgd")
        for scheme in map(Scheme.parse, (self.scheme, self.outer_warmup_scheme)):
            if scheme.takes_momentum and (name != "sgd" or resolve(SGD.options, given, "optimizer sgd")["momentum"]):
                memory = scheme.part_names["memory"]
                raise InvalidArgument(f"memory {memory} of {scheme} has the momentum itself and needs plain SGD: "
                                      f"give optimizer sgd without momentum, got {self.optimizer}")


class Point(NamedTuple):
    """One evaluation. Losses are means over rows; bits and memory norm over the workers, density over the steps too."""

    step: int  # steps done
    epoch: float
    lr: float  # of the last step
    train_loss: float  # of the batches since the last evaluation
    test_loss: float
    metric: float
    density: float  # share of the coordinates sent a step, since the last evaluation
    bits: float  # sent by the mean worker so far
    memory_norm: float  # root of the mean worker's |e|^2, now


@dataclass
class Report:
    """A run, the same on every rank but for the seconds."""

    app: str
    metric: str  # name of the metric
    settings: LoopSettings
    facts: dict[str, Any]  # data and model; ranks
    series: list[Point] = field(default_factory=list)
    further: dict[str, list[float]] = field(default_factory=dict)  # more metrics, a value for each in ``series``
    best: float | None = None  # metric
    best_step: int = 0
    steps: int = 0
    complete: bool = True  # False where it was asked to stop before its end
    early: bool = False  # ended because the metric did not improve any more
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> this rank's, since it was resumed

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "series": [point._asdict() for point in self.series]}
