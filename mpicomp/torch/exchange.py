"""The buckets of a model and their way over the ranks: filled by backward, exchanged in order, beside or after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

import numpy as np
import torch

from ..comm.nonblocking import Pending
from ..errors import SKIPPING, InvalidArgument, NonFiniteGradient
from ..ops import ops_for
from ..ops.device import device_of
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from ..types import Array
from .drift import CHECKSUM_BYTES, Compared, abandoned_alone, checksum, is_common
from .flat import FlatBucket, Named, as_array, plan
from .lanes import Lanes
from .settings import Options, is_traced

HOST = np.empty(0)  # whose operations gradients on the host take
REFUSED = 2  # what a flag says; 1: not finite
SEED_STEP = 1_000_003  # between the random numbers of two buckets
TWICE = (
    "the gradient of {} came twice in one step: expected once. Checkpoints need use_reentrant=False; of several "
    "backward() all but the last go into no_sync(); after one that failed the optimizer's zero_grad() begins anew"
)


class Exchange:
    """Averages the gradients of some parameters, bucket by bucket, each by a ``Reducer`` of its own.

    Every rank starts bucket i before bucket i + 1, whatever order its gradients come in. Beside backward buckets take
    turns on ``Lanes``.

    Parameters
    ----------
    named : list of (name, parameter)
        In the model's order; the same on all ranks.
    lanes : Lanes
        Not opened yet.
    scheme : Scheme
    bucket_bytes : int
    overlap : bool
        Exchange a bucket as soon as it is full; else all of them when ``finish`` is called.
    nonfinite : {"raise", "skip", "allow"}
        With ``skip`` NaN or infinity in any bucket of any rank leaves out the exchange of all, or its result if the
        scheme remembers nothing of it.
    options : dict
        Further ones of ``Reducer``; ``densities`` may name any parameter.
    """

    def __init__(self, named: Named, lanes: Lanes, scheme: Scheme, bucket_bytes: int, overlap: bool, nonfinite: str,
                 options: Options) -> None:
        given = options.get("densities") or {}
        self._memory = scheme.parts(1)[0][0]  # whose kind knows in which steps nothing is sent
        # A memory that has taken part of a step in cannot give it back: then all ranks look at all buckets first.
        self._looks_first = nonfinite == "skip" and remembers(scheme)
        self._lanes, self.comm = lanes, lanes.control
        several = not is_traced(options) and not any(one.is_cuda for _, one in named)
        lanes.open(several, eager=overlap and not self._looks_first and self.comm.size > 1)
        self.remembers = self._memory.remembers or bool(scheme.parts(1).exchange.required_state)
        self.buckets = [FlatBucket(bucket) for bucket in plan(named, bucket_bytes)]
        self.reducers: list[Reducer] = []
        for i, bucket in enumerate(self.buckets):
            densities = {name: value for name, value in given.items() if name in bucket.names}
            own: Options = {**options, "densities": densities}
            self.reducers.append(Reducer(self._lanes.comms[self._lanes.of(i)],
                                         scheme_for(scheme, i, bucket.names, named), nonfinite=nonfinite, **own))
        self.places = {parameter: (i, at) for i, bucket in enumerate(self.buckets)
                       for at, parameter in enumerate(bucket.parameters)}
        self._pending: list[Pending] = []
        self._abandoned = 0  # exchanges whose step never came
        self.begin()

    def begin(self) -> None:
        """Begin the next step: no gradient is there."""
        self.settle()
        self._abandoned += len(self._pending)
        self._pending = []
        self._there = [[False] * len(bucket.names) for bucket in self.buckets]
        self._missing = [len(bucket.names) for bucket in self.buckets]
        self._streams: list[set[torch.cuda.Stream]] = [set() for _ in self.buckets]  # of a GPU, that wrote into each
        self._refused: dict[int, Exception] = {}  # why a bucket could not take one of this rank's gradients
        self._failed: set[int] = set()
        self.skipped, self.alike = False, True
        self._idle: set[torch.nn.Parameter] = set()  # without a gradient on any rank

    def settle(self) -> None:
        """Wait for the exchanges under way: they use the gradients' memory. The step goes on to know of them."""
        for pending in self._pending:
            with suppress(Exception):  # which the step raises, if it comes
                pending.Wait()

    def put(self, parameter: torch.nn.Parameter, factor: float) -> None:
        """A gradient has come; start the buckets that are now full, in order."""
        i, at = self.places[parameter]
        bucket = self.buckets[i]
        if self._there[i][at]:
            self._refused.setdefault(i, InvalidArgument(TWICE.format(bucket.names[at])))
            return
        self._there[i][at] = True
        self._write(i, at, parameter.grad, factor)
        self._missing[i] -= 1
        if self._lanes.threaded:
            self._start_full()

    def finish(self, factor: float, mine: Compared) -> set[torch.nn.Parameter]:
        """Exchange what backward has left, wait for all (collective).

        Parameters without a gradient on this rank contribute zero and what their error memory sends. Those without
        one on any rank take no part, and their error memory stays as it is. No rank has begun a bucket with such a
        parameter when all learn of it. ``alike`` then says whether all ranks gave the same ``mine``.

        Returns
        -------
        The parameters that have no gradient on any rank, or whose bucket was left out of the step.

        Raises
        ------
        Disagreement
            On every rank, before it waits: another rank's exchanges may be of another step.
        """
        unused = self._fill(factor)
        used = [parameter not in unused for parameter in self.places]
        flags = np.concatenate([np.array([0, *used], np.uint8), checksum(self._abandoned), checksum(mine)])
        self._share(flags, self._looks_first and not all(is_finite(bucket.flat) for bucket in self.buckets))
        if not is_common(flags[-2 * CHECKSUM_BYTES:-CHECKSUM_BYTES]):
            raise abandoned_alone(self.comm, self._abandoned)
        anywhere = flags[1:-2 * CHECKSUM_BYTES]
        self._idle = {parameter for parameter, used in zip(self.places, anywhere, strict=True) if not used}
        if self._looks_first:
            self._refuse(flags)
            self.skipped = bool(flags[0])
        if not self.skipped:
            self._missing = [0] * len(self.buckets)
            self._start_full()
            self._wait()
            left_out = [bucket for bucket, one in zip(self.buckets, self.reducers, strict=True) if one.stats.skipped]
            if self._looks_first:  # a mean that overflowed on the wire: the other buckets' memories have changed
                self._idle.update(*(bucket.parameters for bucket in left_out))
            else:
                self.skipped = bool(left_out)
                self._refuse(flags)
        return self._idle

    def view(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Return a parameter's gradient, which is the mean after ``finish``."""
        i, at = self.places[parameter]
        return self.buckets[i].views[at]

    def _fill(self, factor: float) -> set[torch.nn.Parameter]:
        """Fill in gradients that backward did not bring: zero, or the sum of ``no_sync``.

        Return the parameters without a gradient. A frozen parameter has none, even if an earlier step has left one.
        """
        unused = set()
        for parameter, (i, at) in self.places.items():
            if self._there[i][at]:
                continue
            gradient = parameter.grad if parameter.requires_grad else None
            if gradient is None:
                unused.add(parameter)
            self._write(i, at, gradient, factor)
        return unused

    def _write(self, i: int, at: int, gradient: torch.Tensor | None, factor: float) -> None:
        """Write a gradient (None: zero) to its place.

        The bucket's step, for which the others wait, raises an error of it on all ranks; a silent step, at the end.
        """
        bucket = self.buckets[i]
        try:
            if gradient is not None:
                bucket.put(at, gradient.detach(), factor)
        except Exception as error:  # of any kind: the other ranks wait
            self._refused.setdefault(i, error)
            gradient = None
        if gradient is None:
            bucket.views[at].zero_()
        if bucket.flat.is_cuda:  # autograd adds up each gradient on the stream of its forward pass
            self._streams[i].add(torch.cuda.current_stream(bucket.flat.device))

    def _wait(self) -> None:
        """Return when the threads have nothing left to do; raise what went wrong first."""
        failure = None
        started, self._pending = self._pending, []
        for pending in started:
            try:
                pending.Wait()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _share(self, flags: np.ndarray, nonfinite: int) -> None:
        """Combine over ranks: gradients refused or not finite, parameters in use, the checksum's maxima."""
        flags[0] = REFUSED if self._refused else nonfinite
        if self.comm.size > 1:
            self.comm.allreduce_in_place(flags, op="max")

    def _refuse(self, flags: np.ndarray) -> None:
        """Raise on all ranks the errors that no step has raised."""
        if flags[0] == REFUSED:
            self.comm.fail_together(next(iter(self._refused.values()), None))
        self.alike = is_common(flags[-CHECKSUM_BYTES:])

    def _start_full(self) -> None:
        """Start the exchange of the buckets that are full and whose predecessors have been started."""
        while len(self._pending) < len(self.buckets) and not self._missing[len(self._pending)]:
            i = len(self._pending)
            events = [stream.record_event() for stream in self._streams[i]]
            self._pending.append(self._lanes.start(self._lanes.of(i), self._average, i, events))

    def _average(self, i: int, events: list[torch.cuda.Event]) -> None:
        """Replace a bucket by its mean over the ranks; nothing after one of this lane's that failed on all ranks."""
        lane = self._lanes.of(i)
        if lane in self._failed:
            return
        with self.reducers[i].leaving_out(name for name, parameter in zip(
                self.buckets[i].names, self.buckets[i].parameters, strict=True) if parameter in self._idle):
            self._reduce(i, lane, events)

    def _reduce(self, i: int, lane: int, events: list[torch.cuda.Event]) -> None:
        arrays: Mapping[str, Array] = self.buckets[i].arrays
        if i in self._refused and not self._memory.is_local(self.reducers[i].step):
            arrays = Refused(self._refused[i])
        try:
            device = device_of(self.buckets[i].flat)
            if device is None:
                self.reducers[i].reduce(arrays, out=arrays)
                return
            if self.buckets[i].flat.is_cuda:
                torch.cuda.set_device(self.buckets[i].flat.device)  # a new thread's is GPU 0; see `device.stay_on`
            for event in events:
                event.synchronize()  # the gradients are there
            with device.side_stream(as_array(self.buckets[i].flat)):
                self.reducers[i].reduce(arrays, out=arrays)
        except BaseException:
            self._failed.add(lane)
            raise


class Refused(Mapping[str, Array]):
    """Stand-in for gradients that were refused: raises their error in a Reducer, which raises it on all ranks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, name: str) -> NoReturn:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error


class Alone:
    """The exchange of a single rank by a scheme that changes nothing: no copy is made."""

    def __init__(self, named: Named, nonfinite: str) -> None:
        self.reducers: list[Reducer] = []
        self.buckets: list[FlatBucket] = []
        self._named, self._nonfinite, self.skipped, self.alike = named, nonfinite, False, True
        self.remembers = False

    def begin(self) -> None:
        """Nothing to prepare, and nothing to wait for."""

    settle = begin

    def put(self, parameter: torch.nn.Parameter, factor: float) -> None:
        """Leave the gradient in place."""

    def finish(self, factor: float, mine: Compared) -> set[torch.nn.Parameter]:
        """Look for NaN and infinity."""
        gradients = [(name, one.grad) for name, one in self._named if one.grad is not None]
        wrong = [] if self._nonfinite == "allow" else [name for name, one in gradients if not is_finite(one)]
        if wrong and self._nonfinite == "raise":
            raise NonFiniteGradient(f"the gradient of {wrong[-1]} holds NaN or infinity ({len(wrong)} of "
                                    f"{len(gradients)} do). {SKIPPING}")
        self.skipped = bool(wrong)
        return set()


def is_finite(gradient: torch.Tensor) -> bool:
    """Return True if a tensor holds neither NaN nor infinity."""
    if gradient.is_cuda or not gradient.is_contiguous() or gradient.dtype not in (torch.float32, torch.float64):
        return bool(torch.isfinite(gradient).all())
    return not ops_for(HOST).count_nonfinite(gradient.detach().numpy().ravel())[0]


def scheme_for(scheme: Scheme, i: int, names: list[str], named: Named) -> Scheme:
    """The scheme of bucket ``i``: the first and last array are the model's, and random numbers are its own."""
    absent = {word for word, name in (("first", named[0][0]), ("last", named[-1][0])) if name not in names}
    words = scheme.options["dense"].split("+")
    kept = [word for word in words if word not in absent]
    changes = {"dense": "+".join(kept) or "none"} if kept != words else {}
    if i:
        changes["seed"] = scheme.options["seed"] + SEED_STEP * i
    return scheme.replace(**changes) if changes else scheme


def remembers(scheme: Scheme) -> bool:
    """Return True if a step leaves state for the next one."""
    parts = scheme.parts(1)
    return parts.memories[0].stateful or parts.exchange.stateful or parts.schedule.stateful


def sends_all(scheme: Scheme) -> bool:
    """Return True if the mean over one worker is its gradient, bit for bit."""
    parts, values = scheme.part_names, scheme.options.get("values")
    plain = (parts["memory"], parts["selector"], parts["codec"], parts["exchange"]) == ("none", "all", "float", "dense")
    return plain and values in ("same", "float64")
