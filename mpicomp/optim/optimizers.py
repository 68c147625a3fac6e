"""Optimizers for NumPy and CuPy arrays; no framework needed.

An optimizer changes named parameters in place, given gradients that are the same on all ranks (a ``Reducer``'s mean);
so parameters and state stay the same on all ranks without a message. It works on any array with Python's operators.

    optimizer = mpicomp.optim.make("sgd:momentum=0.9,nesterov=yes", parameters)
    optimizer.step(reducer.reduce(gradients), lr=schedule(step))

w is a parameter, g its gradient, d = g + weight_decay w; gradients are not modified.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, SupportsInt, cast

import numpy as np

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument
from ..ops import ops_for
from ..schemes.options import BETAS, Option, resolve, written
from ..types import Array

Arrays = Mapping[str, Array]

WEIGHT_DECAY = Option("weight_decay", float, 0.0, "times the parameter, added to its gradient", low=0)
SKIP_1D = Option("skip", str, "1d", "arrays that are neither decayed nor scaled by norms: biases and norms, or none",
                 choices=("1d", "none"))  # fmt: skip


class Optimizer(ABC):
    """Base of all optimizers: named slots of one array per parameter, a step counter, saving and loading of state.

    Parameters
    ----------
    parameters : mapping of str to array
        Of one of the class's ``dtypes``; changed in place by ``step``.
    **options
        Those that the class declares.

    Raises
    ------
    InvalidArgument
        For a parameter of another dtype, an unknown option (with the choices) or a value out of range.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    slots: ClassVar[tuple[str, ...]]
    reference: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")  # others lose eps and what moments add up

    def __init__(self, parameters: Arrays, **options: object) -> None:
        self.parameters = dict(parameters)
        for name, w in self.parameters.items():
            if str(w.dtype) not in self.dtypes:
                raise InvalidArgument(f"optimizer {self.name} takes parameters of {', '.join(self.dtypes)}, got "
                                      f"{w.dtype} of {name}: keep a copy in float32")
        self.settings = resolve(self.options, options, f"optimizer {self.name}")
        self.steps = 0
        self._kept = {slot: {name: zeros_like(w) for name, w in self.parameters.items()} for slot in self.slots}

    def step(self, gradients: Arrays, lr: float) -> None:
        """One update with learning rate ``lr``.

        Raises
        ------
        InvalidArgument
            The gradients' names, shapes or dtypes are not the parameters', or ``lr`` is negative or not finite.
        """
        self._check(gradients)
        self._check_rate(lr)
        self.steps += 1
        for name, w in self.parameters.items():
            self._update(w, gradients[name], lr, *(self._kept[slot][name] for slot in self.slots))

    def state_dict(self) -> dict[str, object]:
        """Everything but the parameters: ``{"name": ..., "steps": ..., "slot/parameter": array}``; copies."""
        kept = {f"{slot}/{name}": a.copy() for slot, arrays in self._kept.items() for name, a in arrays.items()}
        return {"name": self.name, "steps": self.steps, **kept}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where ``state_dict`` was taken; arrays go to the device of the parameters.

        Raises
        ------
        InvalidArgument
            The state is of another optimizer or of other parameters; nothing is changed then.
        """
        self._check_state(state)
        self._take_state(state)

    def _check_state(self, state: Mapping[str, object]) -> None:
        mine = {f"{slot}/{name}": a for slot, arrays in self._kept.items() for name, a in arrays.items()}
        theirs = {name: value for name, value in state.items() if name not in ("name", "steps")}
        if state.get("name") != self.name:
            raise InvalidArgument(f"the state must be of optimizer {self.name}, got {state.get('name')}")
        whole("steps", state)
        if {n: a.shape for n, a in mine.items()} != {n: getattr(a, "shape", None) for n, a in theirs.items()}:
            raise InvalidArgument(f"the state must be of {', '.join(mine) or 'no arrays'} in the parameters' shapes, "
                                  f"got {', '.join(theirs) or 'none'}")

    def _take_state(self, state: Mapping[str, object]) -> None:
        self.steps = whole("steps", state)
        for slot, arrays in self._kept.items():
            for name, array in arrays.items():
                value = state[f"{slot}/{name}"]
                array[...] = ops_for(array).from_host(value) if isinstance(value, np.ndarray) else value

    def _check(self, gradients: Arrays) -> None:
        expected, got = ({n: (tuple(a.shape), a.dtype) for n, a in arrays.items()}
                         for arrays in (self.parameters, gradients))  # fmt: skip
        if expected != got:
            raise InvalidArgument(f"gradients must have the parameters' names, shapes and dtypes {expected}, got {got}")

    @staticmethod
    def _check_rate(lr: float) -> None:
        if not 0 <= lr < math.inf:
            raise InvalidArgument(f"lr must be at least 0 and finite, got {lr}")

    @abstractmethod
    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        """One step of one parameter, in place."""

    def _exempt(self, w: Array) -> bool:
        """Return True if a parameter is neither decayed nor scaled by norms."""
        return self.settings["skip"] == "1d" and w.ndim <= 1


class SGD(Optimizer):
    """Stochastic gradient descent: v <- momentum v + d; w <- w - lr v. Nesterov: w <- w - lr (d + momentum v).

    Reference: Polyak, USSR Comp. Math. 4, 1964; Nesterov's form as in Sutskever et al., ICML 2013, equations 3 and 4,
    with the change of variables that torch.optim.SGD has, to which it is equal.
    """

    name = "sgd"
    options = (
        Option("momentum", float, 0.0, "of the velocity", low=0, high=1),
        Option("nesterov", str, "no", "look ahead along the velocity", choices=("yes", "no")),
        WEIGHT_DECAY,
    )
    slots = ("velocity",)
    reference = "Polyak 1964; Sutskever et al. 2013"
    dtypes = (*Optimizer.dtypes, "float16", "bfloat16")

    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        (v,) = slots
        momentum = self.settings["momentum"]
        d = g + self.settings["weight_decay"] * w if self.settings["weight_decay"] else g
        if momentum:
            v *= momentum
            v += d
            d = d + momentum * v if self.settings["nesterov"] == "yes" else v
        w -= lr * d


class Adam(Optimizer):
    """m <- b1 m + (1-b1) d; s <- b2 s + (1-b2) d^2; w <- w - lr m / (1-b1^t) / (sqrt(s / (1-b2^t)) + eps).

    With decoupled=yes d is g alone, and w <- (1 - lr weight_decay) w comes first (AdamW).

    Reference: Kingma and Ba, Adam, ICLR 2015, algorithm 1; Loshchilov and Hutter, AdamW, ICLR 2019, algorithm 2.
    """

    name = "adam"
    options = (*BETAS, WEIGHT_DECAY,
               Option("decoupled", str, "no", "decay the parameter, not through its gradient", choices=("yes", "no")))
    slots = ("first", "second")
    reference = "Kingma and Ba 2015; Loshchilov and Hutter 2019"

    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        m, s = slots
        decay = self.settings["weight_decay"]
        if decay and self.settings["decoupled"] == "yes":
            w *= 1 - lr * decay
        elif decay:
            g = g + decay * w
        w -= lr * _adaptive(g, m, s, self.settings, self.steps)


class LARS(Optimizer):
    """Layer-wise rates: v <- momentum v + lr r d; w <- w - v.

    r = trust_coefficient |w| / (|g| + weight_decay |w|); 1 where a norm is 0, and for the arrays that ``skip`` names.

    Reference: You et al., Large batch training of convolutional networks, 2017, algorithm 1 (r: equation 6).
    """

    name = "lars"
    options = (
        Option("momentum", float, 0.9, "of the velocity", low=0, high=1), WEIGHT_DECAY,
        Option("trust_coefficient", float, 0.001, "how far a layer may move in proportion to its norm", low=0,
               open_low=True),
        SKIP_1D,
    )
    slots = ("velocity",)
    reference = "You et al. 2017"

    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        (v,) = slots
        decay, rate = (0.0 if self._exempt(w) else self.settings["weight_decay"]), 1.0
        size, slope = norm(w), norm(g)
        if size and slope and not self._exempt(w):
            rate = self.settings["trust_coefficient"] * size / (slope + decay * size)
        v *= self.settings["momentum"]
        v += (lr * rate) * (g + decay * w if decay else g)
        w -= v


class LAMB(Optimizer):
    """u = Adam's direction + weight_decay w; w <- w - lr (|w| / |u|) u.

    The ratio is 1 where a norm is 0, and for the arrays that ``skip`` names.

    Reference: You et al., Large batch optimization for deep learning, ICLR 2020, algorithm 2, phi the identity.
    """

    name = "lamb"
    options = (*BETAS[:2], Option("eps", float, 1e-6, BETAS[2].meaning, low=0, open_low=True), WEIGHT_DECAY, SKIP_1D)
    slots = ("first", "second")
    reference = "You et al. 2020"

    def _update(self, w: Array, g: Array, lr: float, *slots: Array) -> None:
        m, s = slots
        u = _adaptive(g, m, s, self.settings, self.steps)
        if self._exempt(w):
            w -= lr * u
            return
        if self.settings["weight_decay"]:
            u = u + self.settings["weight_decay"] * w
        size, length = norm(w), norm(u)
        w -= (lr * size / length if size and length else lr) * u


def _adaptive(d: Array, m: Array, s: Array, settings: Mapping[str, float], steps: int) -> Array:
    """Adam's direction; the moments move on."""
    move_moments(m, s, d, settings)
    b1, b2 = settings["beta1"], settings["beta2"]
    return (m / (1 - b1**steps)) / ((s / (1 - b2**steps)) ** 0.5 + settings["eps"])


def move_moments(m: Array, s: Array, d: Array, settings: Mapping[str, float]) -> None:
    """Let Adam's moments follow a gradient d, in place."""
    b1, b2 = settings["beta1"], settings["beta2"]
    m *= b1
    m += (1 - b1) * d
    s *= b2
    s += (1 - b2) * d * d


class SAM:
    """Sharpness-aware minimisation, in two steps: up to w + rho g / |g|, and down with the gradient found there.

        sam.ascend(gradients at w); sam.descend(); optimizer.step(mean of the gradients found above, lr)

    |g| is over all parameters. With a worker's own gradient in ``ascend`` (nothing is sent for it) the worst case is
    looked for in each worker's own batch, the paper's m-sharpness. It keeps nothing between steps. ``descend`` goes
    into a ``finally`` where what comes before it may raise.

    Reference: Foret et al., Sharpness-aware minimization, ICLR 2021, algorithm 1, equation 2.
    """

    def __init__(self, parameters: Arrays, rho: float = 0.05) -> None:
        if not 0 < rho < math.inf:
            raise InvalidArgument(f"rho must be positive and finite, got {rho}")
        self.parameters, self.rho = dict(parameters), rho
        self._below: dict[str, Array] = {}

    def ascend(self, gradients: Arrays) -> None:
        """Move the parameters to where the loss is expected to be highest nearby."""
        length = math.sqrt(sum(norm(g) ** 2 for g in gradients.values()))
        self._below = {name: w.copy() for name, w in self.parameters.items()}
        for name, w in self.parameters.items():
            w += (self.rho / length if length else 0.0) * gradients[name]

    def descend(self) -> None:
        """Put the parameters back, to the last bit."""
        for name, w in self.parameters.items():
            w[...] = self._below[name]
        self._below = {}


def zeros_like(w: Array, workers: int = 1) -> Array:
    """Zeros like a parameter, for several workers with a leading dimension."""
    shape = (workers, *w.shape) if workers > 1 else w.shape
    return ops_for(w).zeros(workers * w.size, w.dtype).reshape(shape)


OPTIMIZERS = {kind.name: kind for kind in (SGD, Adam, LARS, LAMB)}


def norm(x: Array) -> float:
    """Euclidean norm, accumulated in float64."""
    return math.sqrt(ops_for(x).squared_norm(x.reshape(-1)))


def make(text: str, parameters: Arrays) -> Optimizer:
    """The optimizer that ``name:option=value,...`` stands for.

    Raises
    ------
    InvalidArgument
        For an unknown name or option (with the choices) or a value out of range.

    >>> weights = {"w": np.array([1.0, 2.0])}
    >>> make("sgd:momentum=0.5", weights).step({"w": np.array([1.0, 0.0])}, lr=0.1)
    >>> weights["w"].tolist()
    [0.9, 2.0]
    """
    name, given = parse(text, OPTIMIZERS, "optimizer")
    return OPTIMIZERS[name](parameters, **given)


def parse(text: str, registry: Mapping[str, object], what: str) -> tuple[str, dict[str, str]]:
    """``name:option=value,...`` as name and options, the name one of a registry's."""
    name, given = written(text)
    if name not in registry:
        raise InvalidArgument(f"unknown {what} {name!r}{did_you_mean(name, registry)}; "
                              f"there are: {', '.join(registry)}")
    return name, given


def whole(name: str, state: Mapping[str, object]) -> int:
    """The whole number of that name in a state."""
    if name not in state:
        raise InvalidArgument(f"the state must be what state_dict() returned, it lacks {name}")
    try:
        return int(cast(SupportsInt, state[name]))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"the state must have a number as {name}, got {state[name]!r}") from None
