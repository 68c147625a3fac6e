"""Averaging among the workers of a training run: of gradients, of Adam's momenta, or of models by outer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from mpicomp import Reducer
from mpicomp._util.plurals import count
from mpicomp.checkpoint import common_result
from mpicomp.errors import InvalidArgument
from mpicomp.optim import COMMUNICATING, OPTIMIZERS, DiLoCo, make
from mpicomp.optim.communicating import CommunicatingAdam
from mpicomp.optim.optimizers import parse
from mpicomp.schemes.options import resolve

from .checkpoints import check_ranks
from .loop_settings import LoopSettings
from .settings import known

Array = Any


class Steps(Protocol):
    """The interface of an optimizer that the loop uses; its state is flat."""

    def step(self, gradients: dict[str, Array], lr: float, /) -> None: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object], /) -> None: ...


class Averaging(Protocol):
    """See the module.

    Attributes
    ----------
    payload_bits, density : float
        Of the last step: bits sent by a worker of this rank, and elements sent over those of the model.
    common : bool
        All ranks have the same model after every step.
    optimizer : Steps
        Gets what ``mean`` returns.
    """

    payload_bits: float
    density: float
    common: bool
    optimizer: Steps

    @property
    def averages(self) -> bool:
        """True if the next step averages over the workers; False if it is by this worker's gradients alone."""

    @property
    def reducers(self) -> dict[str, Reducer]:
        """Those that a checkpoint saves."""

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """The gradients by which the optimizer steps."""

    def stepped(self, last: bool) -> None:
        """The optimizer has stepped, for the last time or not."""

    @contextmanager
    def model(self) -> Iterator[None]:
        """Within the block the parameters are those of the model to evaluate."""

    def memory_norm(self) -> float: ...

    def saved(self) -> dict[str, Mapping[str, Any]]:
        """Sections of a checkpoint that are this rank's own."""

    def restore(self, saved: Any) -> None:
        """Go on where a checkpoint was written (collective)."""


class OneModel:
    """Base: the model to evaluate is that of the steps, and reducers and optimizer are all that a checkpoint saves."""

    averages = True

    @contextmanager
    def model(self) -> Iterator[None]:
        yield

    def saved(self) -> dict[str, Mapping[str, Any]]:
        return {}


class EveryStep(OneModel):
    """The mean of all workers' gradients, by a Reducer."""

    def __init__(self, comm: Any, reducer: Reducer, optimizer: Steps) -> None:
        self._comm, self._reducer = comm, reducer
        self.optimizer = optimizer
        self.common, self.reducers = common_result(reducer), {"reducer": reducer}
        self.memory_norm = reducer.memory_norm
        self.payload_bits = self.density = 0.0

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        mean: dict[str, Array] = self._reducer.reduce(gradients)
        self.payload_bits, self.density = self._reducer.stats.payload_bits, self._reducer.stats.density
        return mean

    def stepped(self, last: bool) -> None:
        """Nothing is left to do."""

    def restore(self, saved: Any) -> None:
        check_ranks(self._comm, saved, self._reducer)
        saved.restore(self._reducer)


class OuterSteps:
    """Each rank steps by its own gradients, and DiLoCo averages how far the ranks went; see ``mpicomp.optim``.

    The steps of the warm-up are those of ``EveryStep``. DiLoCo is made before it, which refuses wrong settings, and
    anew behind it, from the parameters as they are then.
    """

    common = False

    def __init__(self, comm: Any, settings: LoopSettings, parameters: dict[str, Array], warmup: int,
                 trace: Any) -> None:
        self._comm, self._settings, self._parameters = comm, settings, parameters
        self.optimizer: Steps = make(known(settings.optimizer), parameters)
        self._warmup = EveryStep(comm, Reducer(comm, settings.outer_warmup_scheme, algorithm=settings.algorithm,
                                               trace=trace), self.optimizer)  # fmt: skip
        self._left = warmup  # steps of it
        self.payload_bits = self.density = 0.0
        self._diloco = self._begin()

    def _begin(self) -> DiLoCo:
        """Outer steps from now on (collective)."""
        settings = self._settings
        return DiLoCo(self._parameters, self._comm, settings.every, settings.scheme, fragments=settings.fragments,
                      delay=settings.delay, outer_lr=settings.outer_lr, outer_momentum=settings.outer_momentum,
                      merge=settings.merge)  # fmt: skip

    @property
    def averages(self) -> bool:
        return self._left > 0

    @property
    def reducers(self) -> dict[str, Reducer]:
        return self._warmup.reducers if self.averages else {}

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        return self._warmup.mean(gradients) if self.averages else gradients

    def stepped(self, last: bool) -> None:
        if self.averages:
            self.payload_bits, self.density = self._warmup.payload_bits, self._warmup.density
            self._left -= 1
            if not self.averages:
                self._diloco.close()
                self._diloco = self._begin()
            return
        self._diloco.step()
        self.payload_bits, self.density = self._diloco.payload_bits, self._diloco.density
        if last:
            self._diloco.synchronize()
            self.payload_bits += self._diloco.payload_bits
            self.density += self._diloco.density

    @contextmanager
    def model(self) -> Iterator[None]:
        with nullcontext() if self.averages else self._diloco.outer_parameters():
            yield

    def memory_norm(self) -> float:
        return (self._warmup if self.averages else self._diloco).memory_norm()

    def saved(self) -> dict[str, Mapping[str, Any]]:
        return {"diloco": self._diloco.state_dict()}

    def restore(self, saved: Any) -> None:
        self._comm.fail_together(None if saved.same_ranks else InvalidArgument(
            f"with outer steps each rank has a model of its own: resume on {count(saved.ranks, 'rank')}"
        ))  # fmt: skip
        self._left = max(0, self._left - saved.step)
        if self.averages:
            self._warmup.restore(saved)
        self._diloco.load_state_dict(saved.own["diloco"])


class Momenta(OneModel):
    """Each worker's gradients go to an optimizer that exchanges momenta; see ``mpicomp.optim.OneBitAdam``."""

    common = False

    def __init__(self, comm: Any, settings: LoopSettings, parameters: dict[str, Array], workers: int) -> None:
        name, given = parse(known(settings.optimizer), COMMUNICATING, "optimizer")
        options: dict[str, Any] = {**given}
        adam = COMMUNICATING[name](comm, parameters, gradient_scheme=settings.scheme, workers=workers,
                                   algorithm=settings.algorithm, **options)
        self._comm, self._adam = comm, adam
        self.optimizer: Steps = FlatState(adam)
        self.reducers, self._done = dict[str, Reducer](), dict.fromkeys(adam.reducers, 0)
        self.memory_norm = adam.reducers["momentum"].memory_norm
        self.payload_bits = self.density = 0.0

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        self._done = {name: reducer.step for name, reducer in self._adam.reducers.items()}
        return gradients

    def stepped(self, last: bool) -> None:
        used = [one.stats for name, one in self._adam.reducers.items() if one.step > self._done[name]]
        self.payload_bits, self.density = sum(one.payload_bits for one in used), sum(one.density for one in used)

    def restore(self, saved: Any) -> None:
        self._comm.fail_together(None if saved.same_ranks else InvalidArgument(
            f"with optimizer {self._adam.name} each rank has a state of its own: resume on {count(saved.ranks, 'rank')}"
        ))  # fmt: skip


class FlatState:
    """An optimizer with reducers, whose state is one flat section of a checkpoint."""

    def __init__(self, adam: CommunicatingAdam) -> None:
        self._adam = adam

    def step(self, gradients: dict[str, Array], lr: float) -> None:
        self._adam.step(gradients, lr)

    def state_dict(self) -> dict[str, object]:
        state = self._adam.state_dict()
        reducers: Any = state.pop("reducers")
        return {**state, **{f"reducers/{name}/{key}": value for name, one in reducers.items()
                            for key, value in one.items()}}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Collective."""
        reducers: dict[str, dict[str, object]] = {name: {} for name in self._adam.reducers}
        flat = dict(state)
        for key in [key for key in flat if key.startswith("reducers/")]:
            _, name, rest = key.split("/", 2)
            reducers[name][rest] = flat.pop(key)
        self._adam.load_state_dict({**flat, "reducers": reducers})


def check_optimizer(text: str) -> None:
    """Refuse an optimizer that does not exist, or its options, with InvalidArgument."""
    kinds = {**OPTIMIZERS, **COMMUNICATING}
    name, given = parse(text, kinds, "optimizer")
    resolve(kinds[name].options, given, f"optimizer {name}")


def averaging(comm: Any, settings: LoopSettings, parameters: dict[str, Array], workers: int, steps_per_epoch: int,
              trace: Any) -> Averaging:
    """The one that the settings ask for, for this rank's ``workers`` (collective)."""
    if settings.communicates:
        return Momenta(comm, settings, parameters, workers)
    if settings.outer is None:
        reducer = Reducer(comm, settings.scheme, workers=workers, algorithm=settings.algorithm, trace=trace)
        return EveryStep(comm, reducer, make(known(settings.optimizer), parameters))
    return OuterSteps(comm, settings, parameters, round(settings.outer_warmup * steps_per_epoch), trace)
