"""Checks of one part of a scheme, a user's own for example, against the promises that every scheme keeps.

A promise is checked in every scheme of ``HOSTS`` that takes the part, each time on a fresh communicator: a part that
breaks one may leave its communicator unusable.
"""

from __future__ import annotations

import os
import re
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isfunction, signature
from typing import NamedTuple

import numpy as np

from .._util.plurals import count
from ..comm.interfaces import Communicator
from ..errors import InvalidArgument, NonFiniteGradient, RankLeft
from ..schemes.interfaces import Part
from ..schemes.registration import PROTOCOLS
from ..schemes.registry import PARTS, Scheme
from .reducer import Reducer

Gradients = dict[str, np.ndarray]
State = dict[str, object]

STEPS = 6
N = 333
LENGTHS = (0, 1, 2, 127)
SHAPES: dict[str, tuple[int, ...]] = {"matrix": (4, 5), "empty": (0,), "scalar": (), "one": (1,), "vector": (31,)}
DENSITY = 0.1  # in place of defaults that select a single element of these short vectors
# Schemes in which a part of each kind is checked, as far as they take it. In those without a memory, with the selector
# `all`, a codec is given the caller's own gradient.
HOSTS = {
    "memory": ("topk", "dense"),
    "selector": ("topk", "scalecom", "randomk", "signsgd:codec=float"),
    "codec": ("topk", "signsgd:memory=none", "scalecom", "dense", "threshold"),
    "exchange": ("topk", "randomk", "dense:memory=residual", "dense", "scaled-integer:memory=residual"),
    "schedule": ("topk", "randomk"),
}


class Broken(Exception):
    """A promise that is not kept; the text says how, and is empty on ranks that do not see it."""


class LeftOut(Exception):
    """A promise that a scheme does not give; the text says why."""


class Row(NamedTuple):
    """The result of one promise; ``passed`` is None if it was left out."""

    promise: str
    ranks: int
    passed: bool | None
    reason: str = ""
    advice: str = ""


class Subject(NamedTuple):
    """A registered part, and the schemes in which it is checked."""

    kind: str
    part: type[Part]
    schemes: list[Scheme]


@dataclass(frozen=True)
class Case:
    """One promise in one scheme."""

    comm: Communicator
    scheme: Scheme

    def reducer(self, workers: int = 1) -> Reducer:
        return Reducer(self.comm, self.scheme, workers=workers)

    def vector(self, step: int, n: int = N) -> np.ndarray:
        """This rank's gradient of a step."""
        return np.random.default_rng([n, step, self.comm.rank]).standard_normal(n).astype(np.float32)

    def arrays(self, step: int, dtype: str = "float32") -> Gradients:
        """This rank's gradients of a step, several arrays of different shapes."""
        rng = np.random.default_rng([step, self.comm.rank])
        return {name: np.asarray(rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}

    def require(self, kept: bool, text: str) -> None:
        """Raise on every rank unless ``kept`` is true on all (collective)."""
        if not self.comm.extremes(int(kept))[0]:
            raise Broken("" if kept else text)


# -- the promises, each a function that returns if it is kept (collective)


def any_length(case: Case) -> None:
    for n in LENGTHS:
        reducer = case.reducer()
        for step in range(2):
            _check_form(case, reducer.reduce(case.vector(step, n)), (n,), "float32", f"a vector of {n} elements")
    for dtype in ("float16", "float64"):
        reducer = case.reducer()
        for step in range(2):
            mean = reducer.reduce(case.arrays(step, dtype))
            for name, shape in SHAPES.items():
                _check_form(case, mean[name], shape, dtype, f"the array {name} {shape} of {dtype}")


def _check_form(case: Case, mean: np.ndarray, shape: tuple[int, ...], dtype: str, what: str) -> None:
    case.require(mean.shape == shape and mean.dtype == dtype, f"the mean of {what} is {mean.shape} of {mean.dtype}")
    case.require(bool(np.isfinite(mean).all()), f"the mean of {what} has elements that are not finite")


def same_on_all_ranks(case: Case) -> None:
    if case.scheme.diverges:
        raise LeftOut("the memory gives every rank a result of its own")
    reducer = case.reducer()
    for step in range(STEPS):
        least, greatest = case.comm.extremes(_digest(reducer.reduce(case.arrays(step))))
        if least != greatest:
            raise Broken(f"ranks have different means in step {step}")


def nothing_lost(case: Case) -> None:
    for workers in (1, 2):
        _nothing_lost(case, workers)


def _nothing_lost(case: Case, workers: int) -> None:
    reducer, sums = case.reducer(workers), np.zeros((2, N))
    for step in range(STEPS):
        gradients = np.stack([case.vector(step + STEPS * worker) for worker in range(workers)])
        sums += gradients.sum(0), workers * reducer.reduce(gradients if workers > 1 else gradients[0])
    state, memory = reducer.state_dict(), case.scheme.parts(1).memories[0]
    if "memory/0/residual" not in state:
        raise LeftOut("the memory saves nothing by the name residual")
    if memory.diverges or memory.takes_momentum or memory.beta != 1 or case.scheme.parts(1).exchange.second_memory:
        raise LeftOut("the memory is not plain error feedback")
    held = np.stack([np.asarray(state[f"memory/{worker}/residual"], float) for worker in range(workers)]).sum(0)
    came_in = sums[0].copy()
    for total in (came_in, held):
        case.comm.allreduce_in_place(total)
    difference = np.abs(case.comm.size * sums[1] + held - came_in)
    worst = int(difference.argmax())
    case.require(bool(difference[worst] <= 1e-3 * workers * case.comm.size),
                 f"element {worst}, summed over ranks of {count(workers, 'worker')} and {STEPS} steps: "
                 f"{came_in[worst]:.4g} came in, "
                 f"{case.comm.size * sums[1][worst]:.4g} was sent, {held[worst]:.4g} is kept")


def gradients_unchanged(case: Case) -> None:
    for make in (case.vector, case.arrays):  # a vector is handed to the parts as it is
        reducer = case.reducer()
        for step in range(2):
            gradients = make(step)
            reducer.reduce(gradients)
            case.require(_digest(gradients) == _digest(make(step)), f"step {step} wrote into the caller's gradient")


def repeatable(case: Case) -> None:
    first, again = ([_digest(mean) for mean in _run(case.reducer(), case, range(STEPS))] for _ in range(2))
    different = [step for step in range(STEPS) if first[step] != again[step]]
    case.require(not different, f"two runs on the same gradients differ from step {min(different, default=0)} on")


def independent(case: Case) -> None:
    alone = [_digest(mean) for mean in _run(case.reducer(), case, range(STEPS))]
    one, other = case.reducer(), case.reducer()
    for step in range(STEPS):
        mean = _digest(one.reduce(case.arrays(step)))
        case.require(mean == alone[step], f"a second reducer of the same scheme changes the mean of step {step}")
        other.reduce(case.arrays(100 + step))


def resumable(case: Case) -> None:
    reducer = case.reducer()
    _run(reducer, case, range(STEPS))
    state = reducer.state_dict()
    saved = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}
    straight = _run(reducer, case, range(STEPS, 2 * STEPS))
    changed = _changed(saved, state)
    case.require(not changed, f"later steps write into the saved state: {', '.join(changed)}")
    second = case.reducer()
    second.load_state_dict(state)
    for step, expected in zip(range(STEPS, 2 * STEPS), straight, strict=True):
        mean = second.reduce(case.arrays(step))
        case.require(_digest(mean) == _digest(expected),
                     f"a reducer that loads the state of step {STEPS} has another mean in step {step}")


def refuses_nonfinite(case: Case) -> None:
    if case.scheme.parts(1).memories[0].local_steps:
        raise LeftOut("a step that sends nothing finds them at the next one that sends")
    last, reducer = case.comm.size - 1, case.reducer()
    for step in range(2):
        reducer.reduce(case.vector(step))
    before = reducer.state_dict()
    for value in (np.nan, np.inf, -np.inf):
        for place in (0, N // 2, N - 1):
            bad = case.vector(2)
            if case.comm.rank == last:
                bad[place] = value
            refused = False
            try:
                reducer.reduce(bad)
            except NonFiniteGradient:
                refused = True
            case.require(refused, f"{value} in element {place} of rank {last} raised no NonFiniteGradient")
            changed = _changed(before, reducer.state_dict())
            case.require(not changed, f"a step that was refused changed {', '.join(changed)}")


def _run(reducer: Reducer, case: Case, steps: range) -> list[Gradients]:
    return [reducer.reduce(case.arrays(step)) for step in steps]


def _digest(arrays: Gradients | np.ndarray) -> int:
    every = [arrays] if isinstance(arrays, np.ndarray) else arrays.values()
    return zlib.crc32(b"".join(array.tobytes() for array in every))


def _changed(before: State, after: State) -> list[str]:
    """Names that two states do not have alike."""
    both = before.keys() & after.keys()
    return sorted((before.keys() ^ after.keys()) | {
        name for name in both if np.asarray(before[name]).tobytes() != np.asarray(after[name]).tobytes()})


class Promise(NamedTuple):
    """A promise, and the usual remedy of a part that breaks it."""

    name: str
    check: Callable[[Case], None]
    advice: str


PROTOCOL = "protocol"
PROMISES = (
    Promise("any length and dtype", any_length,
            "Take lengths from u.n, ctx.n and place.size, and dtypes from ctx.dtype; arrays may be empty."),
    Promise("same on all ranks", same_on_all_ranks,
            "Take all that ranks must share from ctx: number, layout, ctx.key(worker); nothing that one rank has."),
    Promise("sent + kept = came in", nothing_lost,
            "A memory holds back u less what was sent. Sent holds the values that receivers decode, at the ascending "
            "indices that were sent; each index once."),
    Promise("gradients unchanged", gradients_unchanged,
            "Values may be the caller's own gradient: write into a copy."),
    Promise("same when repeated", repeatable,
            "Take random numbers from ctx.key(worker), not from numpy.random or the clock."),
    Promise("reducers independent", independent,
            "Keep state in attributes of the instance, not of the class or the module."),
    Promise("exact resume", resumable,
            "Return copies of all that later steps depend on from state(ops), and set them in load(state)."),
    Promise("NaN refused", refuses_nonfinite,
            "Count elements by ctx.overflows(u) or ctx.read in choose; set finds_nonfinite only if select returns "
            "every NaN and infinity. A memory changes in update alone, an exchange in combine."),
)


# -- running them


def subject(part: type[Part], scheme: str | None = None) -> Subject:
    """Find a part's kind, and the schemes to check it in: ``scheme``, or those of ``HOSTS`` that take it."""
    kind = next((kind for kind, registry in PARTS.items() if part in registry.values()), None)
    if kind is None:
        raise InvalidArgument(f"{getattr(part, '__name__', part)} is no registered part: put "
                              f"@mpicomp.register_part(KIND) before the class; KIND is one of {', '.join(PARTS)}")
    if scheme is not None:
        given = Scheme.parse(scheme)
        return Subject(kind, part, [given if kind in given.given else given.replace(**{kind: part.name})])
    return Subject(kind, part, list(_hosts(kind, part)))


def _hosts(kind: str, part: type[Part]) -> Iterator[Scheme]:
    """The schemes of ``HOSTS`` that take a part."""
    refusals, found = [], False
    for host in HOSTS[kind]:
        try:
            scheme = Scheme.parse(host).replace(**{kind: part.name})
            yield scheme.replace(density=DENSITY) if "density" in scheme.options else scheme
            found = True
        except InvalidArgument as error:
            refusals.append(str(error))
    if not found:
        raise InvalidArgument(f"no scheme takes {kind} {part.name}: {'; '.join(refusals)}; name one by --scheme")


def wrong_arguments(kind: str, part: type[Part]) -> list[str]:
    """Verbs of a part that cannot be called as its protocol declares."""
    wrong = []
    for name, declared in vars(PROTOCOLS[kind]).items():
        own = getattr(part, name, None)
        if not isfunction(declared) or not isfunction(own) or name.startswith("_"):
            continue
        arguments = list(signature(declared).parameters)
        try:
            signature(own).bind(*arguments)
        except TypeError:
            wrong.append(f"{name}{signature(own)} must take ({', '.join(arguments)})")
    return wrong


def check(subject: Subject, make_comm: Callable[[], Communicator], control: Communicator,
          report: Callable[[Row], None]) -> None:
    """Check all promises of a part and report a row for each (collective).

    One error ends the checks of many promises: the first of them is broken, the others are left out as not judged.

    ``make_comm`` returns a communicator of its own in each call; ``control`` is one that no part gets.
    """
    if wrong := wrong_arguments(subject.kind, subject.part):
        report(Row(PROTOCOL, control.size, False, "; ".join(wrong),
                   f"See mpicomp.schemes.interfaces.{PROTOCOLS[subject.kind].__name__}."))
        return
    report(Row(PROTOCOL, control.size, True))
    first: dict[str, str] = {}  # by cause, the promise that was reported with it
    for promise in PROMISES:
        found = [_checked(promise, scheme, make_comm, control) for scheme in subject.schemes]
        wrong = [reason for passed, reason in found if passed is False]
        fresh = [reason for reason in wrong if _cause(reason) not in first]
        left_out = "" if any(passed for passed, _ in found) else found[0][1]
        if fresh:
            report(Row(promise.name, control.size, False, fresh[0], promise.advice))
        elif wrong:
            report(Row(promise.name, control.size, None, f"not judged: the error of {first[_cause(wrong[0])]}"))
        else:
            report(Row(promise.name, control.size, None if left_out else True, left_out))
        first |= {_cause(reason): promise.name for reason in fresh}


def _cause(reason: str) -> str:
    """A reason without its numbers: of steps, lengths and lines."""
    return re.sub(r"\d+", "0", reason)


def _checked(promise: Promise, scheme: Scheme, make_comm: Callable[[], Communicator], control: Communicator
             ) -> tuple[bool | None, str]:
    """The verdict of one promise in one scheme, the same on all ranks, and the reason."""
    comm, mine = make_comm(), ""
    try:
        with no_exit():
            promise.check(Case(comm, scheme))
    except LeftOut as reason:
        return None, str(reason)
    except Exception as error:  # a mistake of any kind in the part
        mine = told(error)
    least, greatest = control.extremes(zlib.crc32(mine.encode()))
    if least != greatest:
        try:
            control.fail_together(AssertionError(mine) if mine else None)
        except AssertionError as joint:
            mine = str(joint)
    return not mine, f"{scheme}: {mine}"


@contextmanager
def no_exit() -> Iterator[None]:
    """Make an error of a part's ``sys.exit``, which would end the checks as if all were well."""
    try:
        yield
    except SystemExit as error:
        if type(error) is not SystemExit:  # a signal
            raise
        raise Broken(f"the part called sys.exit({error.code})") from error


def told(error: Exception) -> str:
    """The text of an error; of one that is not about a promise also its class and place; nothing of another rank's."""
    if isinstance(error, Broken | RankLeft):
        return str(error) if isinstance(error, Broken) else ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}, line {last.lineno})"
