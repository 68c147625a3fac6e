"""DiLoCo: workers train alone; an outer optimizer steps by the mean of how far they went.

    theta_i  <- inner steps of worker i, from theta                       nothing is sent
    Delta    =  mean over i of C(theta - theta_i)                          every ``every`` inner steps, by a ``Reducer``
    m        <- mu m + Delta;  theta <- theta - alpha (Delta + mu m)       SGD with Nesterov's momentum
    theta_i  <- theta_i + a (theta - theta_i)                              a = 1: the worker takes theta

Fragments of the model take turns within a period. With a delay the exchange runs beside the next inner steps.

Reference: Douillard et al., DiLoCo, 2023, algorithm 1; Douillard et al., Streaming DiLoCo, 2025, algorithm 2.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np

from ..comm.comm import Comm
from ..comm.job import Intracomm
from ..comm.nonblocking import Pending, Worker, done_at_once, finish_all, threads_allowed
from ..comm.safety import survivors
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..reducer.reducer import Reducer, load_states
from ..schemes.compatibility import NONFINITE
from ..schemes.exchanges.pieces import UNUSED
from ..schemes.options import Option, resolve
from ..schemes.registry import Scheme
from .fragments import Fragment, InMemory, Parameters, State, divided
from .optimizers import Arrays, whole

OPTIONS = (
    Option("every", int, 30, "inner steps between two exchanges of a fragment", low=1),
    Option("fragments", int, 1, "parts of the model, which are exchanged in turn", low=1),
    Option("delay", int, 0, "inner steps between the beginning of an exchange and its outer step", low=0),
    Option("outer_lr", float, 0.7, "learning rate of the outer steps", low=0, open_low=True),
    Option("outer_momentum", float, 0.9, "Nesterov's momentum of the outer steps", low=0, high=0.999999),
    Option("merge", float, None, "how far a worker goes towards the common parameters; 1 takes them", low=0, high=1,
           open_low=True),
)
SAVED = ("every", "fragments", "delay")  # settings that a resumed run must share
SEED_STEP = 1_000_003  # between the random numbers of two fragments
DELAYED_MERGE = 0.5  # Streaming DiLoCo's: the inner steps beside the exchange count half


class DiLoCo:
    """Average how far workers went, instead of their gradients, every so many inner steps.

    Call ``step`` after each step of the inner optimizer, equally often on every rank. The outer parameters, their
    momentum and the differences are kept in host memory. Construction, ``step`` if an exchange begins or ends in it,
    ``synchronize``, ``load_state_dict``, ``replace_comm`` and ``close`` are collective.

    Parameters
    ----------
    parameters : mapping of str to array
        This worker's, floating point; overwritten by rank 0's at first, and in place by outer steps.
    comm : Comm or MPI.Intracomm
        Of the workers, one per rank; duplicated.
    every : int
        Inner steps between two exchanges of a fragment.
    scheme : str or Scheme
        Sends the differences, with an error memory per fragment. ``topk:density=0.02,codec=sign`` comes closest to
        SparseLoCo.
    fragments : int
        Parts of the model, of about equal size, exchanged in turn and spread evenly over ``every`` steps.
    delay : int
        Inner steps done beside an exchange, fewer than ``every``; it runs in a thread if MPI allows threads.
    outer_lr, outer_momentum : float
        Of the outer steps: SGD with Nesterov's momentum.
    merge : float, optional
        How far a worker goes towards the common parameters after an outer step, in (0, 1]. Default 1, which takes
        them; 0.5 with a delay.
    nonfinite : {"raise", "skip", "allow"}
        What NaN or infinity in any worker's difference does, as in ``Reducer``. With ``skip`` the outer step is left
        out, and every worker takes the common parameters.

    Attributes
    ----------
    steps : int
        Inner steps counted.
    payload_bits, density : float
        Bits that this worker sent in the exchanges that the last ``step`` completed; elements sent over those of the
        model.
    skipped : bool
        True if the last outer step was left out.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: settings out of range, or parameters or settings that differ between ranks.

    Examples
    --------
    One worker. The outer momentum moves the parameters farther than the inner steps did:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> weights = {"w": np.zeros(2)}
    >>> diloco = mpicomp.optim.DiLoCo(weights, mpicomp.Comm(MPI.COMM_SELF), every=2, outer_lr=0.5)
    >>> for _ in range(4):
    ...     weights["w"] -= 1.0  # an inner step
    ...     diloco.step()
    >>> print(weights["w"])  # -0.5 (2 + 0.9 * 2), and then -0.5 (2 + 0.9 * 3.8)
    [-4.61 -4.61]
    """

    def __init__(self, parameters: Arrays | Parameters, comm: Intracomm, every: int = 30,
                 scheme: str | Scheme = "dense", *, fragments: int = 1, delay: int = 0, outer_lr: float = 0.7,
                 outer_momentum: float = 0.9, merge: float | None = None, nonfinite: str = "raise") -> None:
        given: State = {"every": every, "fragments": fragments, "delay": delay, "outer_lr": outer_lr,
                 "outer_momentum": outer_momentum, **({} if merge is None else {"merge": merge})}
        self.comm, self._nonfinite, self.steps = Comm(comm), nonfinite, 0
        self._worker: Worker | None = None
        try:
            run_collectively(self.comm, lambda: self._settle(parameters, given, scheme))
            settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
            self.comm.agree(f"DiLoCo of {self._forms()} scheme={self._scheme} {settings} nonfinite={nonfinite}")
        except Exception:  # on all ranks
            self.comm.Free()
            raise
        self.payload_bits, self.density, self.skipped = 0.0, 0.0, False
        self._share()
        self._reducers = self._open()

    def _settle(self, parameters: Arrays | Parameters, given: dict[str, object], scheme: str | Scheme) -> None:
        """Check this rank's arguments; lay out the fragments."""
        own = InMemory(parameters) if isinstance(parameters, Mapping) else parameters
        self._own: Parameters = own
        self.settings = resolve(OPTIONS, given, "DiLoCo")
        self._scheme, settings = Scheme.parse(scheme), self.settings
        if self._nonfinite not in NONFINITE:
            raise InvalidArgument(f"nonfinite must be one of {', '.join(NONFINITE)}, got {self._nonfinite!r}")
        if settings["merge"] is None:
            settings["merge"] = DELAYED_MERGE if settings["delay"] else 1.0
        every, fragments = settings["every"], settings["fragments"]
        if settings["delay"] >= every:
            raise InvalidArgument(f"delay must be less than every={every} inner steps, got {settings['delay']}")
        if self._scheme.diverges:
            raise InvalidArgument(f"DiLoCo needs a scheme whose mean is the same on all ranks, got {self._scheme}")
        if self._scheme.takes_momentum and settings["outer_momentum"]:
            raise InvalidArgument(f"scheme {self._scheme} holds the momentum: outer_momentum must be 0, got "
                                  f"{settings['outer_momentum']:g}. Give it 0, or take memory=residual")
        groups = divided({name: own.read(name).size for name in own.names}, fragments)
        for name in own.names:
            if own.read(name).dtype.kind != "f":
                raise InvalidArgument(f"parameter {name} must be floating point, got {own.read(name).dtype}")
        self._fragments = [Fragment(names, max(1, (number + 1) * every // fragments), own, settings["outer_momentum"])
                           for number, names in enumerate(groups)]
        for one in self._fragments:
            if len(dtypes := {value.dtype.name for value in one.theta.values()}) > 1:
                raise InvalidArgument(f"parameters that are exchanged together ({', '.join(one.theta)}) must share one "
                                      f"dtype, got {', '.join(sorted(dtypes))}: convert them, or give fragments=N such "
                                      "that each has one")

    def _forms(self) -> str:
        """Names, shapes and dtypes, for comparison with other ranks'."""
        return ", ".join(f"{name} {list(value.shape)} {value.dtype}"
                         for one in self._fragments for name, value in one.theta.items())

    def _share(self) -> None:
        """Begin with rank 0's parameters (collective)."""
        for fragment in self._fragments:
            for name, value in fragment.theta.items():
                self.comm.broadcast(value.reshape(-1), 0)
                self._own.write(name, value)

    def _open(self) -> list[Reducer]:
        """Return new reducers, on a communicator of their own if they run in a thread (collective)."""
        self._lane = self.comm
        if self.settings["delay"] and threads_allowed(self.comm):
            self._lane, self._worker = Comm(self.comm), self._worker or Worker()
            for one in (self.comm, self._lane):
                one.wait_patiently()
            atexit.unregister(finish_all)
            atexit.register(finish_all)  # again, to run before the exit handlers of the communicator's watchdog
        seed = self._scheme.options["seed"]
        self._may_lose_ranks = survivors.problem() is None
        return [Reducer(self._lane, self._scheme.replace(seed=seed + SEED_STEP * i) if i else self._scheme,
                        nonfinite=self._nonfinite) for i in range(len(self._fragments))]

    # -- steps

    def step(self) -> None:
        """Count an inner step; begin and end the exchanges that are due (collective if there are any).

        Raises
        ------
        NonFiniteGradient
            On every rank, with ``nonfinite="raise"``: a worker's difference holds NaN or infinity. The step does not
            count, and the common parameters stay as they are.
        """
        now, every, delay = self.steps + 1, self.settings["every"], self.settings["delay"]
        self.payload_bits = self.density = 0.0
        for number, fragment in enumerate(self._fragments):
            if fragment.is_due(now, every):
                self._begin(number, now)
        self._end([number for number, fragment in enumerate(self._fragments)
                   if fragment.pending is not None and now >= fragment.started + delay], self.settings["merge"])
        self.steps = now

    def synchronize(self) -> None:
        """Exchange now and take the common parameters: the same model on all ranks (collective).

        A fragment of which all workers have the common parameters is left as it is: only its momentum would move it.
        """
        self.payload_bits = self.density = 0.0
        self._end([number for number, fragment in enumerate(self._fragments) if fragment.pending is not None],
                  self.settings["merge"])
        mine = run_collectively(self.comm, lambda: [self._has_moved(fragment) for fragment in self._fragments])
        everyone, _ = self.comm.gather_to_all(np.array(mine, np.int64))
        moved = np.flatnonzero(everyone.reshape(self.comm.size, -1).any(axis=0)).tolist()
        for number in moved:
            self._begin(number, self.steps)
        self._end(moved, 1.0)

    def _has_moved(self, fragment: Fragment) -> bool:
        """True if this worker's parameters differ from the common ones."""
        return not all(self._own.holds(name, theta) for name, theta in fragment.theta.items())

    @contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """Within the block the worker's parameters are the common ones, to evaluate or save them."""
        own = {name: np.array(self._own.read(name)) for name in self._own.names}
        for fragment in self._fragments:
            for name, value in fragment.theta.items():
                self._own.write(name, value)
        try:
            yield
        finally:
            for name, value in own.items():
                self._own.write(name, value)

    def memory_norm(self) -> float:
        """Euclidean norm of this worker's error memories; waits for the exchanges in flight."""
        self._wait()
        return float(sum(reducer.memory_norm() ** 2 for reducer in self._reducers) ** 0.5)

    def _begin(self, number: int, now: int) -> None:
        """Start the exchange of a fragment's difference."""
        fragment, error = self._fragments[number], None
        try:
            for name, theta in fragment.theta.items():
                np.subtract(theta, self._own.read(name), out=fragment.delta[name])
        except Exception as caught:  # of any class: the other ranks wait for the verdict in the exchange
            error = caught
        start = self._worker.start if self._worker is not None else done_at_once
        fragment.started, fragment.pending = now, start(self._exchange, number, error)

    def _exchange(self, number: int, error: Exception | None) -> None:
        """Replace a fragment's difference by the mean of all workers' (collective; in the thread if there is one)."""
        fragment, reducer = self._fragments[number], self._reducers[number]
        self._lane.fail_together(error)
        fragment.before = reducer.state_dict() if self._may_lose_ranks or len(self._fragments) > 1 else None
        reducer.reduce(fragment.delta, out=fragment.delta)
        stats = reducer.stats
        fragment.outcome = {"skipped": stats.skipped, "payload_bits": stats.payload_bits, "density": stats.density}
        fragment.arrived = True
        if self._may_lose_ranks:  # no rank does the outer step before all can
            self._lane.agree("a mean of DiLoCo has arrived")

    def _end(self, numbers: Sequence[int], merge: float) -> None:
        """Wait for the means of some fragments, then do their outer steps: none of them, if one is refused."""
        errors, ended = [], [self._fragments[number] for number in numbers]
        for fragment in ended:
            pending, fragment.pending = cast("Pending", fragment.pending), None
            try:
                pending.Wait()
            except Exception as error:
                errors.append(error)
        if errors:
            if not all(fragment.arrived for fragment in ended):  # else another rank may have done the outer steps
                self._take_back(numbers)
            raise errors[0]
        for fragment in ended:
            self._step_outwards(fragment, merge)

    def _take_back(self, numbers: Sequence[int]) -> None:
        """Undo exchanges whose outer steps will not be done: error memories become those from before."""
        for number in numbers:
            fragment = self._fragments[number]
            if fragment.before is not None:
                self._reducers[number].restore(fragment.before)
            fragment.before, fragment.arrived = None, False

    def _step_outwards(self, fragment: Fragment, merge: float) -> None:
        """Do the outer step of a fragment, and move the worker towards its result."""
        self.skipped = bool(fragment.outcome["skipped"])
        if not self.skipped:
            fragment.optimizer.step(fragment.delta, self.settings["outer_lr"])
        fragment.before, fragment.arrived = None, False
        self.payload_bits += fragment.outcome["payload_bits"]
        share = fragment.size / max(1, sum(one.size for one in self._fragments))
        self.density += fragment.outcome["density"] * share
        fragment.rounds += 1
        for name, theta in fragment.theta.items():
            if merge == 1 or self.skipped:
                self._own.write(name, theta)
            else:
                own = self._own.read(name)
                self._own.write(name, own + own.dtype.type(merge) * (theta - own))

    def _wait(self) -> None:
        """Wait for the exchanges in flight, whose outer steps are still to come."""
        for fragment in self._fragments:
            if fragment.pending is not None:
                fragment.pending.Wait()

    # -- state

    def state_dict(self) -> State:
        """The outer state: plain values and arrays; copies. Waits for the exchanges in flight and saves their means.

        Every rank saves its own, with its parameters and its inner optimizer.
        """
        self._wait()
        state: State = {name: self.settings[name] for name in SAVED}
        state["steps"] = self.steps
        for number, (fragment, reducer) in enumerate(zip(self._fragments, self._reducers, strict=True)):
            flying = fragment.pending is not None
            own = {"rounds": fragment.rounds, "started": fragment.started, "in flight": flying, **fragment.outcome}
            state |= {f"fragment {number}/{name}": value for name, value in own.items()}
            state |= {f"theta/{name}": value.copy() for name, value in fragment.theta.items()}
            state |= {name: value for name, value in fragment.optimizer.state_dict().items() if "/" in name}
            if flying:
                state |= {f"mean/{name}": value.copy() for name, value in fragment.delta.items()}
            state |= {f"reducer {number}/{name}": value for name, value in reducer.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken, with the worker's parameters of then (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of other settings, of another model, rank or number of ranks.
        Disagreement
            On every rank: the ranks' states are of different steps.

        Nothing is changed then.
        """
        run_collectively(self.comm, lambda: self._check(state))
        self.comm.agree(f"a state of DiLoCo at step {state['steps']}")
        load_states((reducer, _under(f"reducer {number}/", state)) for number, reducer in enumerate(self._reducers))
        self.steps = whole("steps", state)
        for number, fragment in enumerate(self._fragments):
            own = _under(f"fragment {number}/", state)
            fragment.rounds, fragment.started = whole("rounds", own), whole("started", own)
            fragment.outcome = {name: cast("float", own[name]) for name in fragment.outcome}
            fragment.pending, fragment.before = done_at_once(lambda: None) if own["in flight"] else None, None
            fragment.arrived = bool(own["in flight"])
            velocity = fragment.optimizer.slots[0]
            fragment.optimizer.load_state_dict({"name": fragment.optimizer.name, "steps": fragment.rounds, **{
                f"{velocity}/{name}": state[f"{velocity}/{name}"] for name in fragment.theta}})
            for name, theta in fragment.theta.items():
                theta[...] = cast("np.ndarray", state[f"theta/{name}"])
                if own["in flight"]:
                    fragment.delta[name][...] = cast("np.ndarray", state[f"mean/{name}"])

    def _check(self, state: Mapping[str, object]) -> None:
        """Refuse a state of other settings or parameters."""
        self._wait()
        _check_names((*SAVED, "steps"), state)
        saved, mine = ({name: source[name] for name in SAVED} for source in (state, self.settings))
        if saved != mine:
            raise InvalidArgument(f"the state must be of {_text(mine)}, got {_text(saved)}: resume with the settings "
                                  "that saved it, or begin anew from the saved parameters")
        plain = [f"fragment {number}/{name}" for number, one in enumerate(self._fragments)
                 for name in ("rounds", "started", "in flight", *one.outcome)]
        _check_names(plain, state)
        for name in ("steps", *plain):
            whole(name, state)
        expected = {f"{kind}/{name}": _form(value) for number, one in enumerate(self._fragments)
                    for name, value in one.theta.items()
                    for kind in ("theta", "velocity", *["mean"] * bool(state[f"fragment {number}/in flight"]))}
        got = {name: _form(np.asarray(value)) for name, value in state.items()
               if name.startswith(("theta/", "velocity/", "mean/"))}
        if odd := sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name)):
            raise InvalidArgument(f"the state must have {odd[0]} as {expected.get(odd[0], 'nothing')}, got "
                                  f"{got.get(odd[0], 'nothing')}: resume with the model that was saved")

    # -- ranks that died

    def replace_comm(self, comm: Intracomm) -> None:
        """Go on over other ranks, those that survived (collective over ``comm``).

        If all survivors have the mean of an exchange in flight, they do its outer step now. Else it is dropped, and
        error memories become those from before: the next exchange of the fragment covers its inner steps, too, since
        differences are taken to the common parameters. ``steps`` becomes the largest of all ranks'. If another rank
        dies meanwhile, call this again with the next communicator.

        Parameters
        ----------
        comm : Comm or MPI.Intracomm
            For example that of ``mpicomp.survivors``; duplicated. The former communicator is not used any more.
        """
        for fragment in self._fragments:
            if fragment.pending is not None:
                done_at_once(fragment.pending.Wait)  # whose error, if any, is why ranks are left out
                fragment.pending = None
        slices = self._scheme.options["nodes"] == "yes" or any("slice" in one.place for one in self._reducers)
        self.comm = Comm(comm)
        self.comm.fail_together(InvalidArgument(
            f"ranks cannot be left out with {self._scheme}: a rank that dies takes a slice of its node's error memory "
            "along. Take nodes=no") if slices else None)
        mine = np.array([self.steps, *(one.rounds + one.arrived for one in self._fragments)], np.int64)
        everyone = self.comm.gather_to_all(mine)[0].reshape(self.comm.size, -1)
        self.steps = int(everyone[:, 0].max())
        for number, (fragment, means) in enumerate(zip(self._fragments, everyone[:, 1:].min(axis=0), strict=True)):
            if fragment.rounds < means:
                self._step_outwards(fragment, self.settings["merge"])
                self.steps = max(self.steps, fragment.started)
            else:
                self._take_back([number])
        reducers = self._open()
        for former, reducer in zip(self._reducers, reducers, strict=True):
            state = former.state_dict()
            if state["step"]:  # else it has no memory yet
                reducer.load_state_dict({**_of_this_rank(state), "rank": self.comm.rank, "ranks": self.comm.size})
        self._reducers = reducers  # the former ones keep the error memories as long as a rank may die

    def close(self) -> None:
        """Complete what is in flight, without its outer step; end the thread, free the communicators (collective)."""
        if self._worker is not None:
            self._worker.stop()
        if self._lane is not self.comm:
            self._lane.Free()
        self.comm.Free()


def _check_names(names: Iterable[str], state: Mapping[str, object]) -> None:
    if absent := [name for name in names if name not in state]:
        raise InvalidArgument(f"the state must be that of DiLoCo.state_dict(), it lacks {', '.join(absent)}")


def _of_this_rank(state: State) -> State:
    """A reducer's state without what its exchange shares with other ranks."""
    anew: State = {f"exchange/{name}": value for name, value in UNUSED.items() if f"exchange/{name}" in state}
    return {**{name: value for name, value in state.items() if not name.startswith("exchange/")}, **anew}


def _form(array: np.ndarray) -> str:
    return f"{'float' if array.dtype.kind == 'f' else array.dtype}{list(array.shape)}"


def _under(prefix: str, state: Mapping[str, object]) -> dict[str, object]:
    return {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}


def _text(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
