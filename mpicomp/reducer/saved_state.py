"""Checks of a reducer's saved state, before anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..comm.interfaces import Communicator
from ..errors import InvalidArgument
from ..schemes.registry import Scheme
from .levels import OneLevel

RANKS_OWN = ("stay", "cut")  # rules of entries that a rank does not share with others (checkpoint/redistribute.py)


def agree_on(comm: Communicator, state: Mapping[str, Any], scheme: Scheme, workers: int, levels: OneLevel,
             lengths: Mapping[str, int] | None, arrays: str | None) -> None:
    """Refuse states that are not of this reducer, of one step, or complete on all ranks (collective).

    Parameters
    ----------
    state : mapping
        Of this rank, in the form of ``Reducer.state_dict``.
    workers : int
        On this rank.
    levels : OneLevel
    lengths : mapping, optional
        Elements of the memories' vectors and of those that go dense, if the layout of the arrays is known.
    arrays : str, optional
        Their names and shapes, if it is known.

    Raises
    ------
    InvalidArgument
        On every rank: a state is none, or of another reducer, or an error memory is missing from it.
    Disagreement
        On every rank: states are of different steps, or one lacks what another has.
    """
    common, error = "", None
    try:
        common = _examined(state, scheme, workers, levels, lengths or {})
        check_arrays(arrays and state.get("arrays"), arrays)
        _check_rank(state, scheme, comm.rank, comm.size)
    except Exception as caught:  # the other ranks wait for the verdict
        error = caught
    levels.agree(comm, common, error)


def of_part(prefix: str, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies of what one part of a reducer saved, whose names begin with ``prefix``."""
    return {key[len(prefix):]: np.array(value) for key, value in state.items() if key.startswith(prefix)}


def check_whole(state: Mapping[str, Any], scheme: Scheme, memories: int) -> None:
    """Refuse a state, of any step but the first, without what the scheme's parts list as ``required_state``.

    Without its memories a training would go on as if everything were sent. Other state (a warm start, thresholds) may
    be missing on all ranks: it is then found anew.
    """
    (memory,), _, _, exchange, _ = scheme.parts(1)
    wanted = [f"memory/{worker}/{name}" for worker in range(memories) for name in memory.required_state]
    wanted += [f"exchange/{name}" for name in exchange.required_state]
    if int(state["step"]) and (absent := [name for name in wanted if name not in state]):
        raise InvalidArgument(f"the state of step {int(state['step'])} of {scheme} must have its error memories, it "
                              f"lacks {', '.join(absent)}: take a state that is whole, or begin anew without one")


def check_arrays(saved: str | None, given: str | None) -> None:
    """Refuse a state of other arrays, or of the same in another order; None if a state or a layout knows none."""
    if saved is not None and saved != given:
        raise InvalidArgument(f"the arrays must be those of the state, in its order, {saved}, got {given}: pass them "
                              "as the run that saved it did, or begin anew without the state")


def _examined(state: Mapping[str, Any], scheme: Scheme, workers: int, levels: OneLevel, lengths: Mapping[str, int]
              ) -> str:
    """Description of what all ranks' states must have in common."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"the state must be of a Reducer's state_dict, got {type(state).__name__}")
    if absent := [key for key in ("scheme", "workers", "step", "rank", "ranks") if key not in state]:
        raise InvalidArgument(f"the state must be of a Reducer's state_dict, it lacks {', '.join(absent)}")
    if not scheme.equals(state["scheme"]):
        raise InvalidArgument(f"the state must have scheme={scheme}, got {state['scheme']}")
    if state["workers"] != workers:
        raise InvalidArgument(f"the state must have workers={workers}, got {state['workers']}")
    _check_slice(state, levels)
    memories = levels.memories(workers)
    check_whole(state, scheme, memories)
    for kind, n in lengths.items():
        got = {np.size(value) for name, value in state.items() if name.startswith(f"{kind}/")}
        if got - {n}:
            raise InvalidArgument(f"the state's {kind} vectors must have {n} elements, got {got}")
    vectors = ", ".join(_arrays(state, memories)) or "no vectors"
    return f"a state of step {int(state['step'])} of {scheme} for arrays {state.get('arrays')}, with {vectors}"


def _check_slice(state: Mapping[str, Any], levels: OneLevel) -> None:
    """Refuse the arrays of another slice, or of whole vectors instead of a slice: nodes and their ranks differ."""
    names = ("node", "nodes", "slice", "slices")
    saved = {name: state[name] for name in names} if all(name in state for name in names) else {}
    if saved != levels.place and any("/" in name for name in state):
        raise InvalidArgument(f"the state must be of {_slice_text(levels.place)}, got that of {_slice_text(saved)}: "
                              "each rank loads the state that it saved. For other nodes or nodes=no use "
                              "mpicomp.checkpoint, which redistributes error memories")


def _slice_text(place: Mapping[str, int]) -> str:
    """A description of what a rank keeps."""
    if "slice" not in place:
        return "whole vectors"
    return "slice {slice} of {slices} on node {node} of {nodes}".format_map(place)


def _check_rank(state: Mapping[str, Any], scheme: Scheme, rank: int, ranks: int) -> None:
    """Refuse the error memories of another rank or of another number of ranks: those of some workers would be lost."""
    saved, mine = (state["rank"], state["ranks"]), (rank, ranks)
    rules = scheme.parts(1).redistribution
    own = {f"{kind}/{name}" for (kind, name), rule in rules.items() if rule in RANKS_OWN}
    if saved != mine and any(name.startswith("memory/") or name in own for name in state):
        raise InvalidArgument(f"the state must be that of rank {rank} of {ranks}, got that of rank {saved[0]} of "
                              f"{saved[1]}: each rank loads the state that it saved. For another number of ranks use "
                              "mpicomp.checkpoint, which redistributes error memories")


def _arrays(state: Mapping[str, Any], workers: int) -> list[str]:
    """The names of its arrays: of memories once for all workers, of whom ranks may have different numbers."""
    first, *others = ([f"memory/{name[len(prefix):]}" for name in sorted(state) if name.startswith(prefix)]
                      for prefix in (f"memory/{worker}/" for worker in range(workers)))
    for worker, names in enumerate(others, start=1):
        if names != first:
            raise InvalidArgument(f"the state must have the same of every worker: of worker 0 {', '.join(first) or '-'}"
                                  f", of worker {worker} {', '.join(names) or '-'}")
    return [*first, *(name for name in sorted(state) if "/" in name and not name.startswith("memory/"))]
