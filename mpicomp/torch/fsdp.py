"""Compression for FSDP2: of gradients between the replicas of shards, or of what the shards themselves exchange."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
import torch.distributed

from ..comm.comm import Comm, Traffic
from ..comm.job import Intracomm, world
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..ops import ops_for
from ..ops.block_codes import FORMATS, block_codes_nbytes
from ..ops.device import device_of
from ..reducer.reducer import Reducer
from ..reducer.shards import ReplicaReducer, ShardReducer, check_one_level, for_shards
from ..schemes.registry import Scheme
from ..types import Array
from .broadcast import check_alike
from .exchange import Refused, scheme_for
from .flat import COMPUTE, Named, as_array, finished, named_arrays
from .mesh import Mesh, Position, Unit, position_of, units_of
from .optimizer import State, loaded_states, saved_states
from .refusals import check_nonfinite
from .settings import HookOptions, enabled_scaler, options_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

DENSE = "dense"
GATHERS = (DENSE, *FORMATS)
OF_SHARDS = ("nonfinite", "trace")  # options that reducers of shards without replicas take


def compress(model: torch.nn.Module, scheme: str | Scheme = DENSE, *, gather: str = DENSE,
             comm: Intracomm | None = None, grad_scaler: torch.amp.GradScaler | None = None,
             **options: Unpack[HookOptions]) -> FSDPCompression:
    """Compress the communication of a model that ``torch.distributed.fsdp.fully_shard`` has sharded (collective).

    On a mesh of replicas and shards PyTorch reduces over the shards, and the scheme averages each shard over its
    replicas. On a mesh of shards the scheme carries the reduce-scatter itself; it must send all elements by
    ``exchange=pieces``: ``int8``, ``int4``, ``fp8``, ``onebit``, ``half``, ``dense``. Sums are in float32 or float64.

    Parameters
    ----------
    model : Module
        Sharded as a whole: call ``fully_shard`` on all its parts first.
    scheme : str or Scheme
    gather : {"dense", "int8", "int4", "fp8"}
        How shards of the parameters travel to the ranks that compute with them. ``dense`` leaves that to PyTorch.
        With others, all ranks compute with the same rounded parameters; the optimizer keeps the exact ones.
    comm : Comm or MPI.Intracomm, optional
        The processes of the model's mesh, in any order; by default all of the job. Duplicated.
    grad_scaler : torch.amp.GradScaler, optional
        The one in use. Schemes then see unscaled gradients; a group of parameters whose gradients overflow on any rank
        is infinite on all ranks, so that the scaler leaves out the step, and its error memory stays as it was. Implies
        ``nonfinite="skip"``.
    options
        Further ones of ``Reducer``: ``nonfinite`` and ``trace``, with replicas also ``algorithm``, ``densities`` and
        ``measures``.

    Returns
    -------
    FSDPCompression
        For statistics, state and ``close``.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: the model is not sharded, or compressed already; the scheme cannot work on its mesh; arguments
        are out of range, or differ.
    """
    everyone = Comm(world() if comm is None else comm)
    try:
        settings = run_collectively(everyone, lambda: settle_sharded(model, scheme, gather, grad_scaler, options))
        mesh = Mesh(everyone, settings.position)
    finally:
        everyone.Free()
    with mesh.closed_if_refused() as whole:
        check_alike(whole, settings.description)
        whole.agree(settings.text)
        return FSDPCompression(mesh, settings)


class Settings(NamedTuple):
    """Checked arguments of ``compress``."""

    units: list[Unit]
    position: Position
    scheme: Scheme
    gather: str
    scaler: torch.amp.GradScaler | None
    options: HookOptions
    named: Named  # all trained parameters, in the model's order
    text: str  # that must be the same on all ranks

    @property
    def description(self) -> list[str]:
        """Names, shapes and dtypes of all shards."""
        return [f"{name} {list(shape)} {str(one.dtype).removeprefix('torch.')} in {unit.name}" for unit in self.units
                for (name, one), shape in zip(unit.named, unit.shapes, strict=True)]


def settle_sharded(model: torch.nn.Module, scheme: str | Scheme, gather: str,
                   grad_scaler: torch.amp.GradScaler | None, options: HookOptions) -> Settings:
    """Check the arguments of this rank."""
    units = units_of(model)
    for unit in units:
        unit.check()
    position, parsed = position_of(units), Scheme.parse(scheme)
    if position.replicated:
        check_one_level(parsed)
    else:
        parsed = for_shards(parsed)
        if extra := sorted(set(options) - set(OF_SHARDS)):
            raise InvalidArgument(f"shards without replicas take the options {', '.join(OF_SHARDS)}, got "
                                  f"{', '.join(extra)}")
    check_gather(gather, units)
    nonfinite, scaler = options.get("nonfinite", "raise"), enabled_scaler(grad_scaler)
    check_nonfinite(nonfinite)
    text = (f"compress scheme={parsed} gather={gather} mesh={len(position.replicas)}x{len(position.shards)} "
            f"grad_scaler={scaler is not None} {options_text(options)}")
    if scaler is not None:
        options = {**options, "nonfinite": "skip"}
    order = {name: at for at, (name, _) in enumerate(model.named_parameters())}
    named = sorted((one for unit in units for one in unit.named), key=lambda one: order.get(one[0], len(order)))
    if unknown := sorted(set(options.get("densities") or {}) - {name for name, _ in named}):
        raise InvalidArgument(f"densities must name parameters of the model, got {', '.join(unknown)}")
    return Settings(units, position, parsed, gather, scaler, options, named, text)


def check_gather(gather: str, units: list[Unit]) -> None:
    """Refuse an unknown ``gather``, and parameters that it cannot code."""
    if gather not in GATHERS:
        raise InvalidArgument(f"gather must be one of {', '.join(GATHERS)}, got {gather!r}")
    for unit in units if gather != DENSE else ():
        if len(unit.gathered) > 1 or not unit.gathered <= set(COMPUTE):
            raise InvalidArgument(f"gather={gather} needs parameters of one floating-point dtype, got "
                                  f"{', '.join(sorted(map(str, unit.gathered)))} in {unit.name}: take gather=dense, or "
                                  "param_dtype of MixedPrecisionPolicy")
        if unit.group._use_post_forward_mesh:
            raise InvalidArgument(f"gather={gather} needs reshard_after_forward=True or False, got a number for "
                                  f"{unit.name}: its parameters would come from another mesh")


class FSDPCompression:
    """Result of ``compress``: reducers of the model's groups of parameters, which FSDP calls during backward.

    Attributes
    ----------
    reducers : dict of str -> Reducer
        By module, the root's as ``"the model"``; for ``stats``.
    """

    def __init__(self, mesh: Mesh, settings: Settings) -> None:
        self._mesh, self._settings = mesh, settings
        self._groups = {id(unit.group) for unit in settings.units}
        self._units = [unit for unit in settings.units if unit.named]
        self.reducers = self._made_reducers()
        for unit in self._units:
            if mesh.replicas is not None:
                unit.hide_replicas()
                unit.module.set_all_reduce_hook(partial(self._average, unit))
            else:
                unit.module.set_custom_reduce_scatter(ReduceScatter(self, unit))  # type: ignore[arg-type]
        for unit in settings.units if settings.gather != DENSE else ():
            # PyTorch's base classes of these two need not be there when this module is imported.
            unit.module.set_custom_all_gather(AllGather(mesh.shards, settings.gather))  # type: ignore[arg-type]

    def _made_reducers(self) -> dict[str, Reducer]:
        scheme, named = self._settings.scheme, self._settings.named
        return {unit.name: self._made_reducer(unit, scheme_for(scheme, number, unit.names, named))
                for number, unit in enumerate(self._units)}

    def _made_reducer(self, unit: Unit, scheme: Scheme) -> Reducer:
        options = self._settings.options
        if self._mesh.replicas is None:
            return ShardReducer(self._mesh.whole, scheme, nonfinite=options.get("nonfinite", "raise"),
                                trace=options.get("trace"))
        given = options.get("densities") or {}
        own: HookOptions = {**options, "densities": {name: given[name] for name in unit.names if name in given}}
        return ReplicaReducer(self._mesh.replicas, scheme, **own)

    # -- called by FSDP

    def _average(self, unit: Unit, shard: torch.Tensor) -> None:
        """Replace the gradients of a unit's shards by their mean over the replicas."""
        work = computed(shard)
        arrays: Mapping[str, Array] = named_arrays(work, unit.names, unit.shapes) if work.numel() == unit.numel else {}
        error = self._refusal(unit, shard.numel())
        with self._unscaled(unit, work, work):
            self.reducers[unit.name].reduce(Refused(error) if error else arrays, out=None if error else arrays)
        if unit.group.gradient_divide_factor is not None:  # counts the replicas in, which are averaged
            work.mul_(self._mesh.shape[0])
        if work is not shard:
            shard.copy_(work)

    def _scatter(self, unit: Unit, gradients: torch.Tensor, out: torch.Tensor, op: object) -> None:
        """Write this rank's shards of the mean of a unit's gradients."""
        reducer, size = cast(ShardReducer, self.reducers[unit.name]), self._mesh.whole.size
        work, mean = computed(gradients), computed(out)
        error = self._refusal(unit, gradients.numel() // size)
        if op not in (torch.distributed.ReduceOp.AVG, torch.distributed.ReduceOp.SUM):
            error = error or InvalidArgument(f"{unit.name} must be reduced by AVG or SUM, got {op}: with "
                                             "set_gradient_divide_factor call set_force_sum_reduction_for_comms(True)")
        with self._unscaled(unit, work, mean):
            vector = {unit.name: as_array(work)}
            reducer.reduce_scatter(Refused(error) if error else vector, as_array(mean))
        if op == torch.distributed.ReduceOp.SUM:
            mean.mul_(size)
        if mean is not out:
            out.copy_(mean)

    @contextmanager
    def _unscaled(self, unit: Unit, gradients: torch.Tensor, mean: torch.Tensor) -> Iterator[None]:
        """For a block that averages ``gradients`` into ``mean``: they are unscaled, and the mean is scaled again.

        If the block fails, FSDP drops the whole backward.
        """
        scaler = self._settings.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        if scale != 1.0:
            gradients.mul_(1.0 / scale)
        try:
            with beside(gradients):
                yield
        except Exception:
            forget_backward(unit)
            raise
        if scaler is not None and self.reducers[unit.name].stats.skipped:
            mean.fill_(torch.inf)  # which every rank's scaler finds
        elif scale != 1.0:
            mean.mul_(scale)

    def _refusal(self, unit: Unit, numel: int) -> Exception | None:
        """The reason why this rank's gradients cannot be averaged."""
        if any(id(group) not in self._groups for group in unit.known_to_root):
            return InvalidArgument(f"modules around {unit.name} were sharded after compress: shard the whole model "
                                   "first, then pass it to compress")
        if not unit.group.all_reduce_grads:
            return InvalidArgument("set_requires_all_reduce(False) has no effect with compress: accumulate gradients "
                                   "with set_requires_gradient_sync(False)")
        if numel != unit.numel:
            return InvalidArgument(f"FSDP must bring gradients of all {len(unit.named)} parameters of {unit.name}, "
                                   f"{unit.numel} elements, got {numel}: if some are unused, call "
                                   "set_reduce_scatter_unused_params(True); freeze parameters before compress")
        return None

    # -- state

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages that this rank has exchanged, without those of PyTorch's own collectives."""
        return self._mesh.traffic

    @property
    def _key(self) -> str:
        return f"replica {self._mesh.replica} shard {self._mesh.shard}"

    def state_dict(self) -> dict[str, bytes]:
        """This rank's error memories, under a key of its own, for ``torch.distributed.checkpoint``.

        ``save`` and ``load`` of that module take this object itself, beside ``get_model_state_dict`` and
        ``get_optimizer_state_dict``. A resumed training has the same bits.
        """
        saved = {"mesh": list(self._mesh.shape), "layout": [unit.names for unit in self._units],
                 "states": saved_states(self.reducers.values())}
        file = io.BytesIO()
        torch.save(saved, file)
        return {self._key: file.getvalue()}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of another scheme, model or mesh.
        """
        states = run_collectively(self._mesh.whole, lambda: self._taken(state_dict))
        reducers = self._made_reducers()
        for reducer, state in zip(reducers.values(), states, strict=True):
            reducer.load_state_dict(state)
        self.reducers = reducers

    def _taken(self, state_dict: Mapping[str, object]) -> list[dict[str, object]]:
        """The states of the reducers."""
        given = state_dict if isinstance(state_dict, Mapping) else {}
        own = given.get(self._key)
        if not isinstance(own, bytes):
            raise InvalidArgument(f"the state must have '{self._key}' of compress's state_dict, got "
                                  f"{', '.join(sorted(given)) or 'nothing'}")
        saved = torch.load(io.BytesIO(own), weights_only=True)
        if (got := saved["mesh"]) != list(self._mesh.shape):
            raise InvalidArgument("the state must be of {} replicas of {} shards, got {} of {}: resume on the mesh "
                                  "that saved it, or without its state".format(*self._mesh.shape, *got))
        if (layout := [unit.names for unit in self._units]) != saved["layout"]:
            raise InvalidArgument(f"the state must be of parameters sharded as {layout}, got {saved['layout']}: call "
                                  "fully_shard on the same modules of the same model")
        return loaded_states(cast(State, saved))

    def close(self) -> None:
        """Let FSDP communicate by itself again; free the communicators (collective)."""
        for unit in self._settings.units:
            unit.release()
        self._mesh.close()


def forget_backward(unit: Unit) -> None:
    """Let FSDP begin the next step anew after a backward that failed: its own reset keeps unsharded gradients."""
    root = unit.module._get_fsdp_state()._state_ctx.all_states[0]
    for group in unit.known_to_root:
        for one in group.fsdp_params:
            one.unsharded_accumulated_grad = None
            if hasattr(one, "_unsharded_param"):
                one._unsharded_param.grad = None
    root._reset_iter_state()


class Buffers:
    """FSDP's request for the memory of a collective."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class ReduceScatter(Buffers):
    """FSDP's reduce-scatter of one unit's gradients."""

    def __init__(self, compression: FSDPCompression, unit: Unit) -> None:
        self._compression, self._unit = compression, unit

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: object, op: object,
                 async_op: bool = False) -> None:
        self._compression._scatter(self._unit, input_tensor, output_tensor, op)


class AllGather(Buffers):
    """FSDP's all-gather of one unit's parameters, as codes of 8 or 4 bits.

    Schedule: every rank codes its shards; all-gather of the codes; every rank decodes all, its own as well: the same
    bits everywhere.
    Cost: (p-1)/p n (1 + 1/64) bytes per rank, ``int4`` n (1/2 + 1/64).
    Restrictions: lossy, as the block codes are.
    Reference: Wang et al., ZeRO++, ICLR 2024 (qwZ).
    """

    def __init__(self, comm: Comm, format: str) -> None:
        self._comm, self._format = comm, format

    @torch.no_grad()
    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: object, async_op: bool = False
                 ) -> None:
        own, size = computed(input_tensor), self._comm.size
        whole = output_tensor if own is input_tensor else torch.empty_like(output_tensor, dtype=own.dtype)
        with beside(own):
            values, target = as_array(own), as_array(whole)
            ops, n = ops_for(values), values.size
            codes = ops.empty(block_codes_nbytes(n, self._format), np.uint8)
            ops.encode_blocks(values, self._format, codes)
            gathered, _ = self._comm.gather_to_all(codes, [codes.size] * size)
            for rank in range(size):
                ops.decode_blocks(gathered[rank * codes.size : (rank + 1) * codes.size], self._format,
                                  target[rank * n : (rank + 1) * n])
        if whole is not output_tensor:
            output_tensor.copy_(whole)


def computed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype of computation: itself, or a copy."""
    return tensor.to(COMPUTE[tensor.dtype])


def beside(work: torch.Tensor) -> AbstractContextManager[None]:
    """For a block that computes on a tensor; on a GPU on a stream of its own, after what is queued on this one."""
    finished(work)
    device = device_of(work)
    return nullcontext() if device is None else device.side_stream(as_array(work))
