"""Averaging among the workers of a training run: of gradients in every step, or of models by DiLoCo's outer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from mpicomp import Reducer
from mpicomp.checkpoint import common_result
from mpicomp.errors import InvalidArgument
from mpicomp.optim import DiLoCo

from .checkpoints import check_ranks
from .loop_settings import LoopSettings

Array = Any


class Averaging(Protocol):
    """See the module.

    Attributes
    ----------
    payload_bits, density : float
        Of the last step: bits sent by a worker of this rank, and elements sent over those of the model.
    common : bool
        All ranks have the same model after every step.
    reducers : dict of str to Reducer
        Those that a checkpoint saves.
    """

    payload_bits: float
    density: float
    common: bool
    reducers: dict[str, Reducer]

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


class EveryStep:
    """The mean of all workers' gradients, by a Reducer."""

    def __init__(self, comm: Any, reducer: Reducer) -> None:
        self._comm, self._reducer = comm, reducer
        self.common, self.reducers = common_result(reducer), {"reducer": reducer}
        self.memory_norm = reducer.memory_norm
        self.payload_bits = self.density = 0.0

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        mean: dict[str, Array] = self._reducer.reduce(gradients)
        self.payload_bits, self.density = self._reducer.stats.payload_bits, self._reducer.stats.density
        return mean

    def stepped(self, last: bool) -> None:
        """Nothing is left to do."""

    @contextmanager
    def model(self) -> Iterator[None]:
        yield

    def saved(self) -> dict[str, Mapping[str, Any]]:
        return {}

    def restore(self, saved: Any) -> None:
        check_ranks(self._comm, saved, self._reducer)
        saved.restore(self._reducer)


class OuterSteps:
    """Each rank steps by its own gradients, and DiLoCo averages how far the ranks went; see ``mpicomp.optim``."""

    common = False

    def __init__(self, comm: Any, settings: LoopSettings, parameters: dict[str, Array]) -> None:
        self._comm, self.reducers = comm, dict[str, Reducer]()
        self._diloco = DiLoCo(
            parameters, comm, settings.every, settings.scheme, fragments=settings.fragments, delay=settings.delay,
            outer_lr=settings.outer_lr, outer_momentum=settings.outer_momentum, merge=settings.merge,
        )  # fmt: skip
        self.model, self.memory_norm = self._diloco.outer_parameters, self._diloco.memory_norm
        self.payload_bits = self.density = 0.0

    def mean(self, gradients: dict[str, Array]) -> dict[str, Array]:
        return gradients

    def stepped(self, last: bool) -> None:
        self._diloco.step()
        self.payload_bits, self.density = self._diloco.payload_bits, self._diloco.density
        if last:
            self._diloco.synchronize()
            self.payload_bits += self._diloco.payload_bits
            self.density += self._diloco.density

    def saved(self) -> dict[str, Mapping[str, Any]]:
        return {"diloco": self._diloco.state_dict()}

    def restore(self, saved: Any) -> None:
        self._comm.fail_together(None if saved.same_ranks else InvalidArgument(
            f"with outer steps each rank has a model of its own: resume on {saved.ranks} ranks"
        ))  # fmt: skip
        self._diloco.load_state_dict(saved.own["diloco"])


def averaging(comm: Any, settings: LoopSettings, parameters: dict[str, Array], workers: int, trace: Any) -> Averaging:
    """The one that the settings ask for, for this rank's ``workers`` (collective)."""
    if settings.outer is None:
        reducer = Reducer(comm, settings.scheme, workers=workers, algorithm=settings.algorithm, trace=trace)
        return EveryStep(comm, reducer)
    return OuterSteps(comm, settings, parameters)
