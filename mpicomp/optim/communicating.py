"""Adam that exchanges its momentum: 1-bit Adam and 0/1 Adam, which take each rank's own gradients and own reducers.

    optimizer = mpicomp.optim.OneBitAdam(comm, parameters, warmup=1000)
    optimizer.step(gradients, lr=schedule(step))        # collective

m and s are Adam's moments, g_i the gradient of worker i, C the scheme: by default one bit per element and one scale per
array, with an error memory on each worker and one for each piece on its owner. Where s is zero, no gradient was ever
seen; such elements are masked: they are neither sent nor changed, or the noise of C would be divided by eps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, SupportsFloat, cast

from ..comm.interfaces import Communicator
from ..comm.safety.agreement import rebuild
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument, NonFiniteGradient
from ..ops import ops_for
from ..reducer.reducer import Reducer, load_states
from ..schemes.options import BETAS, Option
from ..schemes.registry import Scheme
from ..types import Array
from .optimizers import WEIGHT_DECAY, Arrays, Optimizer, move_moments, whole, zeros_like

Rates = dict[str, float]  # by parameter
ONE_BIT = "signsgd:exchange=pieces"
FLOOR = Option("floor", float, 0.1, "least second moment when it is frozen, as a share of its array's mean", low=0)


class CommunicatingAdam(Optimizer):
    """Base: two reducers, masked updates, and errors that all ranks raise.

    Parameters
    ----------
    comm : Comm
    parameters : mapping of str to array
        Floating point, the same on all ranks; changed in place by ``step``.
    scheme : str or Scheme
        What the momentum is sent by. Its error memory should keep what it loses.
    gradient_scheme : str or Scheme
        What gradients are sent by, in steps that send them. Its error memory is left behind when they end.
    workers : int
        Virtual workers on this rank; with more than one, each gradient has a leading dimension of this size.
    algorithm, nonfinite
        As in ``Reducer``. ``nonfinite="skip"`` leaves out the whole step on all ranks.
    **options
        Those that the class declares.

    Attributes
    ----------
    reducers : dict of str to Reducer
        ``gradients`` and ``momentum``; for ``stats`` and ``mpicomp.checkpoint``.
    """

    per_worker: ClassVar[tuple[str, ...]] = ()  # slots with one array per worker

    def __init__(self, comm: Communicator, parameters: Arrays, *, scheme: str | Scheme = ONE_BIT,
                 gradient_scheme: str | Scheme = "dense", workers: int = 1, algorithm: str = "auto",
                 nonfinite: str = "raise", **options: object) -> None:
        self.comm, self.workers = comm, workers
        run_collectively(comm, lambda: self._prepare(parameters, options))
        comm.agree(f"{self.name} of {list(self.parameters)} with {self.settings}")
        self.reducers = {name: Reducer(comm, one, workers=workers, algorithm=algorithm, nonfinite=nonfinite)
                         for name, one in (("gradients", gradient_scheme), ("momentum", scheme))}

    def _prepare(self, parameters: Arrays, options: Mapping[str, object]) -> None:
        super().__init__(parameters, **options)
        for slot in self.per_worker:
            self._kept[slot] = {name: zeros_like(w, self.workers) for name, w in self.parameters.items()}

    def step(self, gradients: Arrays | Callable[[], Arrays],
             lr: float | Mapping[str, float] | Callable[[], Mapping[str, float]]) -> None:
        """One update with this rank's own gradients and a learning rate, or one per parameter (collective).

        Both may be functions that give them, which may raise as well.

        Raises
        ------
        InvalidArgument, NonFiniteGradient, Disagreement
            On every rank, and nothing is changed: gradients that do not fit the parameters or are not finite, a rate
            that is negative, not finite or not the same on all ranks.
        """
        rates: Rates = dict.fromkeys(self.parameters, 0.0)
        given: Arrays = {}
        error: Exception | None = None
        try:
            rates = self._rates(lr() if callable(lr) else lr)
            given = gradients() if callable(gradients) else gradients
            self._check(given)
        except Exception as caught:  # of any class: the other ranks wait for the verdict
            error = caught
        self._step(given, rates, error)

    @abstractmethod
    def _step(self, gradients: Arrays, rates: Rates, error: Exception | None) -> None:
        """Update the parameters; an ``error`` of this rank is raised on all ranks."""

    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        raise TypeError(f"{self.name} updates all parameters at once")

    def _rates(self, lr: float | Mapping[str, float]) -> Rates:
        """The learning rate of each parameter; refuse those that are not as expected."""
        rates = {name: lr[name] if isinstance(lr, Mapping) else lr for name in self.parameters}
        for rate in set(rates.values()):
            self._check_rate(rate)
        return rates

    def _check(self, gradients: Arrays) -> None:
        if self.workers > 1:
            wrong = [name for name, g in gradients.items() if g.shape[:1] != (self.workers,)]
            if wrong:
                raise InvalidArgument(f"gradients of {self.workers} workers must have a leading dimension of "
                                      f"{self.workers}, got {gradients[wrong[0]].shape} of {wrong[0]}")
            gradients = {name: g[0] for name, g in gradients.items()}
        super()._check(gradients)

    def _agree(self, rates: Rates, error: Exception | None) -> None:
        """Compare the step on all ranks, and raise an error of any rank on all; ``rates`` since the last exchange."""
        each = list(rates.values())  # in the order of the parameters, on which all ranks have agreed
        said = each[:1] if len(set(each)) == 1 else each
        self.comm.agree(f"step {self.steps} of {self.name}, learning rates since the last exchange {said}", error)

    def _reduced(self, which: str, arrays: Arrays) -> dict[str, Array] | None:
        """The mean of arrays over all workers; None if the step is left out."""
        reducer = self.reducers[which]
        mean = reducer.reduce(dict(arrays))
        return None if reducer.stats.skipped else cast("dict[str, Array]", mean)

    def _exact_step(self, gradients: Arrays, rates: Rates, first: Arrays, updates: int, floor: float = 0.0) -> bool:
        """A step of Adam on averaged gradients after so many ``updates`` of s; return if it was taken, or left out."""
        mean = self._reduced("gradients", gradients)
        if mean is None:
            return False
        for name, w in self.parameters.items():
            m, s = first[name], self._kept["second"][name]
            move_moments(m, s, mean[name], self.settings)
            w *= self._decayed(name, rates)
            w -= self._corrected(rates[name]) * m / self._root(s, updates + 1, floor)
        self.steps += 1
        return True

    def _root(self, s: Array, updates: int, floor: float) -> Array:
        """Return the divisor of a momentum after so many ``updates`` of s."""
        least = floor * s.mean() if s.size else 0.0  # NumPy warns of the mean of an empty array
        return (s.clip(least, None) / (1 - self.settings["beta2"] ** updates)) ** 0.5 + self.settings["eps"]

    def _corrected(self, rate: float) -> float:
        """A learning rate with the bias correction of this step's momentum."""
        return rate / (1 - float(self.settings["beta1"]) ** (self.steps + 1))

    def _decayed(self, name: str, rates: Rates) -> float:
        """The factor of decoupled weight decay in a step."""
        return 1 - rates[name] * float(self.settings["weight_decay"])

    def state_dict(self) -> dict[str, object]:
        """This rank's state, without the parameters; ``reducers`` has those of the reducers by name."""
        return {**super().state_dict(), "reducers": {name: one.state_dict() for name, one in self.reducers.items()}}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of another optimizer, other parameters, schemes or workers.
        Disagreement
            On every rank: the ranks' states are of different steps.

        Nothing is changed then.
        """
        own, reducers = run_collectively(self.comm, lambda: self._parted(state))
        self.comm.agree(f"a state of {self.name} at step {whole('steps', own)}")
        load_states((reducer, reducers[name]) for name, reducer in self.reducers.items())
        self._take_state(own)

    def _parted(self, state: object) -> tuple[dict[str, object], Mapping[str, Mapping[str, object]]]:
        """A state without those of the reducers, and these."""
        own = dict(state) if isinstance(state, Mapping) else {}
        reducers = own.pop("reducers", None)
        if not isinstance(reducers, Mapping) or set(reducers) != set(self.reducers):
            raise InvalidArgument(f"the state must have those of the reducers {', '.join(self.reducers)} under "
                                  f"'reducers', got {type(reducers).__name__}: pass a whole state_dict()")
        self._check_state(own)
        return own, reducers


class OneBitAdam(CommunicatingAdam):
    """Adam on averaged gradients for ``warmup`` steps; then s is frozen, and workers exchange compressed momenta.

    Schedule: in the warm-up g = mean of g_i by ``gradient_scheme``, and a step is Adam's. Then, with
    r = sqrt(max(s, floor mean(s)) / (1-b2^warmup)) + eps, m = r C((b1 m + (1-b1) g_i) / r), averaged, and
    w <- w - lr m / (1-b1^t) / r. Weight decay is decoupled, as in AdamW.
    Cost: bytes of ``gradient_scheme`` in the warm-up, then those of ``scheme``; two moments, and their memories.
    ``int4:memory=residual`` in the warm-up sends an eighth of dense gradients.
    Restrictions: s must have settled: the paper's warm-up is 15 to 20 % of the training. Elements without a gradient
    in the warm-up are never changed afterwards: with embeddings of rare symbols take memory=adam-update instead.

    Reference: Tang et al., 1-bit Adam, ICML 2021, algorithm 1. Differs: moments have bias corrections; C compresses
    m / r, not m, whose mean magnitude is far too long a step where s is small; and r has a floor.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> weights = {"w": np.array([1.0, 2.0])}
    >>> optimizer = mpicomp.optim.OneBitAdam(mpicomp.Comm(MPI.COMM_SELF), weights, warmup=1)
    >>> for _ in range(2):
    ...     optimizer.step({"w": np.array([1.0, 1.0])}, lr=0.1)
    >>> weights["w"].round(3).tolist()
    [0.8, 1.8]
    """

    name = "onebit-adam"
    options = (*BETAS, WEIGHT_DECAY,
               Option("warmup", int, 1000, "steps on averaged gradients, in which the second moment is learned", low=1),
               FLOOR)
    slots = ("first", "second")
    reference = "Tang et al. 2021"

    def _step(self, gradients: Arrays, rates: Rates, error: Exception | None) -> None:
        self._agree(rates, error)
        b1, warmup = self.settings["beta1"], self.settings["warmup"]
        first, second = self._kept["first"], self._kept["second"]
        if self.steps < warmup:
            self._exact_step(gradients, rates, first, self.steps)
            return
        roots = {name: self._root(s, warmup, self.settings["floor"]) for name, s in second.items()}
        mean = self._reduced("momentum", {name: (second[name] > 0) * (b1 * first[name] + (1 - b1) * g) / roots[name]
                                          for name, g in gradients.items()})
        if mean is None:
            return
        for name, w in self.parameters.items():
            step = (second[name] > 0) * mean[name]
            first[name][...] = step * roots[name]
            w *= self._decayed(name, rates)
            w -= self._corrected(rates[name]) * step
        self.steps += 1


PLAIN = ("alone", "exact", "moved", "deferred")  # what 0/1 Adam saves besides arrays


class ZeroOneAdam(CommunicatingAdam):
    """1-bit Adam whose exact steps may be ever rarer, and whose ranks later step alone.

    Schedule: of the first ``warmup`` steps those are exact whose distance doubles after every ``kappa`` of them: m and
    s follow the mean of g_i by ``gradient_scheme``, and w <- w - lr m / (1-b1^t) / r, with r as in `OneBitAdam`. Then s
    is frozen. In every other step m_i <- b1 m_i + (1-b1) g_i, and the sum of lr m_i since the last exchange gathers. In
    an exchange m = r C(sum of lr m_i / sum of lr / r), averaged, takes the place of all m_i, and
    w <- (w at the last exchange) - (sum of lr) m / r. Each of the first ``warmup`` steps that is not exact has one;
    then their distance doubles every ``doubling`` steps, up to ``longest``. In between each rank's w moves by its m_i.
    Cost: bytes of ``gradient_scheme`` in an exact step, the scheme's in an exchange, none in a local step;
    vectors s and w at the last exchange, and m_i and the sum of each worker.
    Restrictions: between exchanges the ranks' parameters differ. Where a gradient is refused in a local step, m_i stays
    as it is, and the next exchange raises its error on all ranks. See `OneBitAdam` for elements without a gradient.

    Reference: Lu et al., 0/1 Adam, ICLR 2023, algorithm 1. Differs: s follows g before w moves; in exact steps so
    does m, without an exchange; kappa is 16 in the paper; see `OneBitAdam`.
    """

    name = "zero-one-adam"
    options = (
        *OneBitAdam.options[:-2],
        Option("warmup", int, 1000, "steps in which the second moment is learned; none is local", low=1),
        Option("kappa", int, 1000, "exact steps until their distance doubles", low=1),
        Option("doubling", int, 1000, "steps after the warm-up until the distance of exchanges doubles", low=1),
        Option("longest", int, 16, "largest distance of exchanges, in steps", low=1),
        FLOOR,
    )
    slots = ("second", "start", "own", "gathered")
    per_worker = ("own", "gathered")
    reference = "Lu et al. 2023"

    def _prepare(self, parameters: Arrays, options: Mapping[str, object]) -> None:
        super()._prepare(parameters, options)
        self._alone = 0  # local steps since the last exchange
        self._moved = dict.fromkeys(self.parameters, 0.0)  # sums of learning rates since then
        self._exact = 0  # updates of s
        self._deferred: Exception | None = None  # of a local step, raised in the next exchange

    @property
    def exchanges(self) -> bool:
        """True if the next step has an exchange."""
        after = self.steps - int(self.settings["warmup"])
        if after < 0:
            return True
        doublings = min(after // int(self.settings["doubling"]), 62)
        return self._alone + 1 >= min(int(self.settings["longest"]), 1 << doublings)

    def _learns(self) -> bool:
        """True if the second moment follows the gradient of this step."""
        level = (self.steps // int(self.settings["kappa"]) + 1).bit_length() - 1
        since = self.steps - int(self.settings["kappa"]) * ((1 << level) - 1)
        return self.steps < self.settings["warmup"] and since % (1 << level) == 0

    def _step(self, gradients: Arrays, rates: Rates, error: Exception | None) -> None:
        if not self.exchanges:
            self._step_alone(gradients, rates, error)
            return
        error, self._deferred = error or self._deferred, None
        self._agree(self._sums(rates), error)
        floor = self.settings["floor"]
        if self._learns():  # never after a local step: all m_i are one
            own = self._kept["own"]
            each = {name: own[name].reshape(self.workers, *w.shape) for name, w in self.parameters.items()}
            if self._exact_step(gradients, rates, {name: m[0, ...] for name, m in each.items()}, self._exact, floor):
                self._exact += 1
                for m in each.values():
                    m[1:] = m[0]
            return
        own, gathered, moved = self._gathered(gradients, rates)
        second = self._kept["second"]
        roots = {name: self._root(s, self._exact, floor) for name, s in second.items()}
        common = self._reduced("momentum", {
            name: (s > 0) * (gathered[name] / moved[name] if moved[name] else own[name]) / roots[name]
            for name, s in second.items()})  # fmt: skip
        if common is None:
            return
        for name, w in self.parameters.items():
            step = (second[name] > 0) * common[name]
            start = self._kept["start"][name] if self._alone else w
            w[...] = self._decayed(name, rates) * start - self._corrected(moved[name]) * step
            self._kept["own"][name][...] = step * roots[name]
            self._kept["gathered"][name][...] = 0
        self._alone, self._moved = 0, dict.fromkeys(self.parameters, 0.0)
        self.steps += 1

    def _sums(self, rates: Rates) -> Rates:
        """The sums of learning rates since the last exchange."""
        return {name: self._moved[name] + rate for name, rate in rates.items()}

    def _gathered(self, gradients: Arrays, rates: Rates) -> tuple[dict[str, Array], dict[str, Array], Rates]:
        """The workers' momenta after this step, their gathered sums, and the sums of rates."""
        b1 = self.settings["beta1"]
        own = {name: b1 * m + (1 - b1) * gradients[name] if gradients else m for name, m in self._kept["own"].items()}
        gathered = {name: self._kept["gathered"][name] + rates[name] * m for name, m in own.items()}
        return own, gathered, self._sums(rates)

    def _step_alone(self, gradients: Arrays, rates: Rates, error: Exception | None) -> None:
        """A step without a message. A refused gradient is kept from m_i alone: all else the ranks have in common."""
        policy = self.reducers["momentum"].nonfinite
        bad = None if error is not None or policy == "allow" else self._nonfinite(gradients)
        own, gathered, self._moved = self._gathered({} if error or bad else gradients, rates)
        for name, w in self.parameters.items():
            start, decay = self._kept["start"][name], self._decayed(name, rates)
            if not self._alone:
                start[...] = w
            start *= decay
            m = own[name].mean(axis=0) if self.workers > 1 else own[name]
            s = self._kept["second"][name]
            w *= decay
            w -= self._corrected(rates[name]) * (s > 0) * m / self._root(s, self._exact, self.settings["floor"])
            self._kept["own"][name][...], self._kept["gathered"][name][...] = own[name], gathered[name]
        self._deferred = self._deferred or error or (bad if policy == "raise" else None)
        self._alone += 1
        self.steps += 1

    def _nonfinite(self, gradients: Arrays) -> Exception | None:
        """The error about a gradient of this rank that is not finite."""
        for name, g in gradients.items():
            count, first = ops_for(g).count_nonfinite(g.reshape(-1))
            if count:
                return NonFiniteGradient(f"{name}[{first}] is not finite in the local step {self.steps} of "
                                         f"{self.name}, in which this rank's momentum stays as it is")
        return None

    def state_dict(self) -> dict[str, object]:
        deferred = self._deferred and [type(self._deferred).__name__, str(self._deferred)]
        return {**super().state_dict(), "alone": self._alone, "exact": self._exact, "moved": dict(self._moved),
                "deferred": deferred}

    def _check_state(self, state: Mapping[str, object]) -> None:
        if absent := [name for name in PLAIN if name not in state]:
            raise InvalidArgument(f"the state must be that of {self.name}, it lacks {', '.join(absent)}")
        super()._check_state({name: value for name, value in state.items() if name not in PLAIN})
        try:
            _plain(state)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the state must have moved and deferred as {self.name} saves them: {error}"
                                  ) from error

    def _take_state(self, state: Mapping[str, object]) -> None:
        super()._take_state(state)
        self._alone, self._exact, self._moved, self._deferred = _plain(state)


def _plain(state: Mapping[str, object]) -> tuple[int, int, Rates, Exception | None]:
    """The values of ``PLAIN`` in a state."""
    alone, exact = (whole(name, state) for name in ("alone", "exact"))
    moved = {name: float(rate) for name, rate in cast("Mapping[str, SupportsFloat]", state["moved"]).items()}
    deferred = cast("tuple[str, str] | None", state["deferred"])
    return alone, exact, moved, deferred and rebuild(*deferred)


COMMUNICATING = {kind.name: kind for kind in (OneBitAdam, ZeroOneAdam)}
