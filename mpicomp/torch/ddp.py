"""A communication hook for DistributedDataParallel: its buckets travel by MPI and by any scheme."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import torch

from ..comm.job import Intracomm
from ..comm.nonblocking import Pending
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..ops.device import device_of
from ..optim.optimizers import whole
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from .arrivals import Arrival, Group, gathered, same, scatter
from .exchange import SEED_STEP, Refused
from .flat import COMPUTE, about_sparse, as_array, in_c_order, named_arrays
from .lanes import Lanes
from .optimizer import State, loaded_states, saved_states
from .settings import HookOptions, is_traced, settle_hook

if TYPE_CHECKING:
    from typing_extensions import Unpack

ARRANGED = 3  # steps; DDP rebuilds its buckets at most once, before the third


class HookState(State):
    """State of a hook."""

    step: int


def ddp_hook(comm: Intracomm, scheme: str | Scheme = "dense",
             named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | Iterable[torch.nn.Parameter] = (),
             **options: Unpack[HookOptions]) -> DDPHook:
    """The hook for ``model.register_comm_hook(None, ddp_hook(comm, "powersgd:rank=2"))`` (collective).

    The first step goes dense, because DDP rebuilds its buckets after it. If it does not, the second step goes dense,
    too: with ``static_graph=True`` DDP rebuilds them then.

    Parameters
    ----------
    comm : Comm or MPI.Intracomm
        The same processes as DDP's process group, in any order.
    scheme : str or Scheme
        Selects within each bucket.
    named_parameters : iterable of (str, Parameter), or of Parameter, optional
        ``model.named_parameters()``, for ``state_dict`` and for schemes that go by names (``dense=norm``).
    options
        Further ones of ``Reducer``: ``algorithm``, ``densities``, ``measures``, ``nonfinite``, ``trace``.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: arguments that are out of range, or differ.
    """
    lanes = Lanes(comm)
    with lanes.closed_if_refused() as own:
        parsed, named, text = run_collectively(own, lambda: settle_hook(scheme, named_parameters, options))
        own.agree(text)
        lanes.open(several=not is_traced(options))
    return DDPHook(lanes, parsed, dict(named), options)


class DDPHook:
    """Called by DDP with each bucket, in the same order on all ranks; see ``ddp_hook``.

    Each of the rebuilt buckets becomes a ``Group`` with a Reducer. Error memory belongs to parameters: a group keeps
    its own whatever buckets DDP has later, and after a resume. Groups take turns on ``Lanes``.

    Attributes
    ----------
    reducers : dict of int -> Reducer
        By group; for ``stats``.
    """

    def __init__(self, lanes: Lanes, scheme: Scheme, named: dict[str, torch.nn.Parameter],
                 options: HookOptions) -> None:
        self.scheme, self._options = scheme, options
        self._names = {parameter: name for name, parameter in named.items()}
        self.reducers: dict[int, Reducer] = {}
        self._groups: list[Group] = []
        self._group_of: dict[torch.nn.Parameter, Group] = {}
        self._step, self._first_buckets = 0, dict[int, list[torch.nn.Parameter]]()
        self._lanes = lanes
        self._pending: list[Pending] = []
        self._refused: Exception | None = None  # why a bucket of this step could not be taken
        self._failed: dict[Group, Exception] = {}  # in this step
        self._memory = scheme.parts(1).memories[0]
        self.__name__ = self.__qualname__ = "ddp_hook"  # DDP looks at a hook's name

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations but its own
        arrival, error = Arrival(bucket), None
        try:
            self._take(bucket.index(), arrival)
        except Exception as caught:
            error = caught
            self._refused = self._refused or error
        if bucket.is_last():
            error = self._end_step(self._refused)
            self._settle()
            self._fail_together()
        arrival.done(error)
        return arrival.future

    def _take(self, index: int, arrival: Arrival) -> None:
        """Start the groups that now have all their gradients, in the same order on all ranks."""
        if index == 0:  # also after a backward that failed half way
            self._refused, self._failed = None, {}
            for group in self._groups:
                group.begin()
        for group, count in self._groups_in(index, arrival.parameters).items():
            if group.put(arrival, count):
                self._start(group)

    def _end_step(self, error: Exception | None) -> Exception | None:
        """End the step of groups that lack gradients, on the other ranks as well; return the first error."""
        self._step += 1
        late = [group for group in self._groups if group.missing]
        if late and error is None:
            names = ", ".join(name for group in late for name in group.names)
            error = InvalidArgument(f"DDP's buckets must bring all parameters of earlier steps, some of {names} are "
                                    "missing: make another hook after a change to the model")
        for group in late:  # the ranks that have all gradients wait for it
            self._start(group, error)
        return error

    def _settle(self) -> None:
        """Wait for all groups: if one is refused, DDP raises at once, and its buckets are written to again."""
        for pending in self._pending:
            pending.Wait()  # raises nothing: errors are the arrivals'
        self._pending = []

    def _fail_together(self) -> None:
        """If a local step has failed, raise its error in the next agreement of all groups: other ranks go there."""
        local = [error for group, error in self._failed.items() if group in self._groups
                 and group.number in self.reducers and self._memory.is_local(self.reducers[group.number].step)]
        if not local:
            return
        for group in self._groups:
            if group not in self._failed:
                group.begin()  # its buckets have their means
                self._start(group, local[0])
        self._settle()

    def _start(self, group: Group, error: Exception | None = None) -> None:
        """Average a group's gradients; with an ``error`` raise it on all ranks instead."""
        if self._lanes.threaded:
            self._pending.append(self._lanes.start(self._lane(group), self._answer, group, group.arrivals, error))
        else:
            self._answer(group, group.arrivals, error)

    def _groups_in(self, index: int, parameters: list[torch.nn.Parameter]) -> dict[Group, int]:
        """Count a bucket's parameters by group; parameters that have none form a new one."""
        if self._goes_dense(index, parameters):
            return {self._made_group(index, parameters, dense=True): len(parameters)}
        new = [parameter for parameter in parameters if parameter not in self._group_of]
        if new:
            if self._step >= ARRANGED:
                raise InvalidArgument(f"DDP's bucket {index} must have parameters of ddp_hook's first {ARRANGED} steps "
                                      f"or of its loaded state, got {len(new)} others: make one hook for each model, "
                                      "and another after a change to the model")
            self._groups.append(self._made_group(len(self._groups), new))
            self._group_of.update(dict.fromkeys(new, self._groups[-1]))
        counts: dict[Group, int] = {}
        for parameter in parameters:
            group = self._group_of[parameter]
            counts[group] = counts.get(group, 0) + 1
        return counts

    def _goes_dense(self, index: int, parameters: list[torch.nn.Parameter]) -> bool:
        """Return True if DDP may still rebuild a bucket: in the first step, and in the second if it has not changed."""
        if self._step == 0:
            self._first_buckets[index] = parameters
        return self._step < 2 and same(parameters, self._first_buckets.get(index, []))

    def _made_group(self, number: int, parameters: list[torch.nn.Parameter], dense: bool = False) -> Group:
        names = [self._names.get(parameter, f"bucket {number} gradient {i}") for i, parameter in enumerate(parameters)]
        return Group(number, parameters, names, dense)

    def _lane(self, group: Group) -> int:
        """Lane of a group; the first if its gradients are on a GPU."""
        return 0 if group.parameters[0].is_cuda else self._lanes.of(group.number)

    def _answer(self, group: Group, arrivals: list[Arrival], error: Exception | None) -> None:
        """Average the gradients of a group where they lie."""
        try:
            if error is not None:
                self._reducer(group).reduce(Refused(error))
                raise error  # which a step without a message keeps to itself
            self._average(group, arrivals)
        except Exception as caught:
            self._failed[group] = error = caught
        for arrival in arrivals:
            arrival.done(error)

    def _average(self, group: Group, arrivals: list[Arrival]) -> None:
        flat = arrivals[0].flat
        if flat.is_cuda:
            torch.cuda.set_device(flat.device)  # a new thread's is GPU 0; see `device.stay_on`
        for arrival in arrivals:
            arrival.wait()
        reducer = self._reducer(group)
        try:
            check_gradients(group, flat)
            in_place = (same(arrivals[0].parameters, group.parameters) and flat.dtype == COMPUTE[flat.dtype]
                        and all(map(in_c_order, group.parameters)))
            gradients = [] if in_place else self._gradients(group, arrivals)
            work = flat if in_place else gathered(gradients)
            arrays = named_arrays(work, group.names, [parameter.shape for parameter in group.parameters])
        except Exception as error:  # the other ranks wait for it in the reducer
            reducer.reduce(Refused(error))
            raise
        device = device_of(work)
        with nullcontext() if device is None else device.side_stream(as_array(work)):
            reducer.reduce(arrays, out=arrays)
        if not in_place:
            scatter(work, gradients)

    def _gradients(self, group: Group, arrivals: list[Arrival]) -> list[torch.Tensor]:
        """Views of a group's gradients, in its order."""
        views = {parameter: view for arrival in arrivals for parameter, view in arrival.gradients().items()}
        return [views[parameter] for parameter in group.parameters]

    def _reducer(self, group: Group) -> Reducer:
        if group.dense:
            comm = self._lanes.comms[self._lane(group)]
            return Reducer(comm, "dense", nonfinite=self._options.get("nonfinite", "raise"))
        if group.number not in self.reducers:
            self.reducers[group.number] = self._made_reducer(group)
        return self.reducers[group.number]

    def _made_reducer(self, group: Group) -> Reducer:
        seed = self.scheme.options["seed"] + SEED_STEP * group.number
        scheme = self.scheme.replace(seed=seed) if group.number else self.scheme
        return Reducer(self._lanes.comms[self._lane(group)], scheme, **self._options)

    # -- state

    def state_dict(self) -> dict[str, object]:
        """This rank's error memories, and the names of their parameters: every rank saves its own.

        A resumed training has the same bits. A state from before the first compressed step is empty: a hook that loads
        it begins with dense steps, as a new one does.

        Raises
        ------
        InvalidArgument
            The hook was made without ``named_parameters``.
        """
        self._settle()
        groups = self._groups if len(self.reducers) == len(self._groups) else []
        if any(parameter not in self._names for group in groups for parameter in group.parameters):
            raise InvalidArgument("a state needs the names of all parameters: ddp_hook(comm, scheme, "
                                  "model.named_parameters())")
        states = saved_states(self.reducers[group.number] for group in groups)
        return {"step": min(self._step, ARRANGED), "layout": [list(group.names) for group in groups], "states": states}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken, whatever buckets DDP has now (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of another scheme or of other parameters.
        Disagreement
            On every rank: the states of the ranks are of different groups of parameters.
        """
        self._settle()
        comm = self._lanes.comms[0]
        step, groups, states = run_collectively(comm, lambda: self._taken(state_dict))
        comm.agree(f"a state of ddp_hook of {[group.names for group in groups]}")
        reducers = {}
        for group, state in zip(groups, states, strict=True):
            reducers[group.number] = self._made_reducer(group)
            reducers[group.number].load_state_dict(state)
        self._groups, self.reducers = groups, reducers
        self._group_of = {parameter: group for group in groups for parameter in group.parameters}
        self._step = step if groups else 0

    def _taken(self, state_dict: object) -> tuple[int, list[Group], list[dict[str, object]]]:
        """The step of a state, its groups, and the states of their reducers."""
        given = state_dict if isinstance(state_dict, Mapping) else {}
        if absent := [key for key in ("step", "layout", "states") if key not in given]:
            raise InvalidArgument(f"the state must be of ddp_hook's state_dict, it lacks {', '.join(absent)}")
        saved, step = cast(State, given), whole("step", given)
        layout, states = saved["layout"], loaded_states(saved)
        known = {name: parameter for parameter, name in self._names.items()}
        if unknown := [name for names in layout for name in names if name not in known]:
            raise InvalidArgument(f"the state must be of parameters that ddp_hook was given as named_parameters, got "
                                  f"{', '.join(unknown)}: pass named_parameters() of the same model")
        groups = [Group(number, [known[name] for name in names], names) for number, names in enumerate(layout)]
        return step, groups, states

    def close(self) -> None:
        """End the threads and free the communicators (collective)."""
        self._lanes.close()


def check_gradients(group: Group, flat: torch.Tensor) -> None:
    """Refuse gradients that cannot be averaged; DDP shows complex ones as real ones, twice as many."""
    if flat.layout != torch.strided:
        raise InvalidArgument(about_sparse(group.names[0]))
    for name, parameter in zip(group.names, group.parameters, strict=True):
        for dtype in (parameter.dtype, flat.dtype):
            if dtype not in COMPUTE:
                raise InvalidArgument(f"gradients must be one of {', '.join(map(str, COMPUTE))}, got {dtype} of {name}")
