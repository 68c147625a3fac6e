"""A model that FSDP2 has sharded: its groups of parameters, and MPI communicators along its mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.distributed

from ..comm.comm import Comm, Traffic
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..ops.device import device_of
from .flat import COMPUTE, Named, as_array

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

NEWEST_NEEDED = "set_separate_reduce_scatter_group"  # a method that the first fitting PyTorch has
ROOT = "the model"  # name of the root's unit; modules may be named "model"
DEVICES = ("cpu", "cuda", "meta")  # meta: parameters that are still to be materialized


class Unit:
    """Parameters that one call of ``fully_shard`` has grouped: their gradients are reduced together.

    Attributes
    ----------
    name : str
        Of the module in the model.
    named : list of (str, Parameter)
        Those that require gradients, in FSDP's order, which is the model's.
    shapes : list of torch.Size
        Of this rank's shards with their padding: the same on all ranks.
    numel : int
        Elements of all these shards.
    """

    def __init__(self, module: FSDPModule, group: FSDPParamGroup, prefixes: dict[torch.nn.Module, str]) -> None:
        self.module, self.group, self._mesh_info = module, group, group.mesh_info
        self.name = prefixes[cast(torch.nn.Module, module)] or ROOT
        trained = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
        infos = [one._module_info for one in trained]
        names = [".".join(filter(None, (prefixes[info.module], info.param_name))) for info in infos]
        self.named: Named = list(zip(names, (one.sharded_param for one in trained), strict=True))
        self.shapes = [one.padded_sharded_param_size for one in trained]
        self.numel = sum(shape.numel() for shape in self.shapes)
        policy, dtypes = group.mp_policy, {one.sharded_param.dtype for one in group.fsdp_params}
        reduced = policy.reduce_dtype or policy.param_dtype
        self.gathered = {policy.param_dtype} if policy.param_dtype else dtypes
        self._reduced = {reduced} if reduced else dtypes

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.named]

    def check(self) -> None:
        """Refuse what no reducer can average, and hooks that are there already."""
        if wrong := sorted(str(dtype) for dtype in self._reduced - set(COMPUTE)):
            raise InvalidArgument(f"gradients of {self.name} must be reduced in one of {', '.join(map(str, COMPUTE))}, "
                                  f"got {', '.join(wrong)}: set reduce_dtype of MixedPrecisionPolicy")
        if self.group.device.type not in DEVICES:
            raise InvalidArgument(f"{self.name} must be on {' or '.join(DEVICES[:2])}, got {self.group.device}")
        if self.group.device.type == "cuda" and device_of(probe := torch.empty(1, device=self.group.device)):
            as_array(probe)  # needs CuPy
        if self.group._all_reduce_hook is not None or customized(self.group):
            raise InvalidArgument(f"{self.name} has an all-reduce hook, or a reduce-scatter or all-gather of its own: "
                                  "compress a model once, and close() what compress returned before another one")

    def hide_replicas(self) -> None:
        """Let FSDP reduce over the shards alone: its own all-reduce over the replicas would come before a hook."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo as MeshInfo

        group, info = self.group, self.group.mesh_info
        alone = MeshInfo(info.mesh, info.shard_mesh_dim, dp_mesh_dims=info.dp_mesh_dims, spmd_mesh=info.spmd_mesh)
        alone.reduce_scatter_process_group = cast("FSDPMeshInfo", info).reduce_scatter_process_group
        if group.post_forward_mesh_info is info:
            group.post_forward_mesh_info = alone
        group.mesh_info = alone

    def release(self) -> None:
        """Let FSDP communicate by itself again."""
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

        group, alone = self.group, self.group.mesh_info
        if group.post_forward_mesh_info is alone:
            group.post_forward_mesh_info = cast("FSDPMeshInfo", self._mesh_info)
        group.mesh_info, group._all_reduce_hook = self._mesh_info, None
        group._all_gather_comm, group._reduce_scatter_comm = DefaultAllGather(), DefaultReduceScatter()

    @property
    def known_to_root(self) -> list[FSDPParamGroup]:
        """The groups of the whole model that FSDP found in its first forward pass."""
        states = self.module._get_fsdp_state()._state_ctx.all_states
        return [group for state in states for group in state._fsdp_param_groups]


def customized(group: FSDPParamGroup) -> bool:
    """Return True if a group does not communicate by PyTorch's own reduce-scatter and all-gather."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

    return (type(group._all_gather_comm), type(group._reduce_scatter_comm)) != (DefaultAllGather, DefaultReduceScatter)


def units_of(model: torch.nn.Module) -> list[Unit]:
    """The groups of a model that FSDP2 has sharded, in the order of its modules; refuse other models."""
    import torch.distributed.fsdp as fsdp

    if not hasattr(fsdp, "FSDPModule") or not hasattr(fsdp.FSDPModule, NEWEST_NEEDED):
        raise InvalidArgument(f"compress needs PyTorch 2.13 or newer, got {torch.__version__}: upgrade it, or take "
                              "DistributedDataParallel with ddp_hook")
    modules = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
    prefixes = {module: name for name, module in reversed(modules.items())}
    units: dict[int, Unit] = {}
    for name, module in modules.items():
        groups = module._get_fsdp_state()._fsdp_param_groups if isinstance(module, fsdp.FSDPModule) else []
        if len(groups) > 1:
            raise InvalidArgument(f"{name or ROOT} has {len(groups)} groups of parameters on meshes of their own, "
                                  "expected one: compress needs fully_shard without meshes in shard_placement_fn")
        for group in groups:  # modules that were sharded together share one
            units.setdefault(id(group), Unit(cast("FSDPModule", module), group, prefixes))
    if not units:
        raise InvalidArgument(f"the model must be sharded by torch.distributed.fsdp.fully_shard before compress, got "
                              f"{type(model).__name__}: call fully_shard first. For DistributedDataParallel take "
                              "ddp_hook, for a plain model DistributedOptimizer")
    if not any(unit.named for unit in units.values()):
        raise InvalidArgument("the model must have a parameter that requires gradients, got none")
    return list(units.values())


class Position(NamedTuple):
    """This process in a mesh: its rank of PyTorch, and those along the two dimensions."""

    rank: int
    shards: list[int]
    replicas: list[int]  # itself alone if the mesh has no replicas
    replicated: bool


def position_of(units: list[Unit]) -> Position:
    """The position in the mesh that all units share; refuse others."""
    positions = [_position_in(unit) for unit in units]
    for unit, position in zip(units, positions, strict=True):
        if position != positions[0]:
            raise InvalidArgument(f"all modules must be sharded over one mesh, got {units[0].name} over ranks "
                                  f"{positions[0].shards} and {unit.name} over {position.shards}: give fully_shard the "
                                  "same mesh")
    return positions[0]


def _position_in(unit: Unit) -> Position:
    info, rank = unit.group.mesh_info, torch.distributed.get_rank()
    if info.shard_mesh_dim is None:
        raise InvalidArgument(f"{unit.name} is replicated, expected shards: take DistributedDataParallel with ddp_hook")
    ranks = torch.distributed.get_process_group_ranks
    replicated = info.replicate_mesh_dim is not None
    replicas = ranks(info.mesh.get_group(info.replicate_mesh_dim)) if replicated else [rank]
    return Position(rank, ranks(info.mesh.get_group(info.shard_mesh_dim)), replicas, replicated)


class Replicas(Comm):
    """Ranks that hold the same shard. They agree with the ranks of all shards, so that all refuse the same steps."""

    mesh: Comm

    def agree(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        self.mesh.agree(signature, error, patient)

    def fail_together(self, error: Exception | None) -> None:
        self.mesh.fail_together(error)


class Mesh:
    """Communicators of the ranks of a mesh; making and closing them is collective.

    Attributes
    ----------
    whole : Comm
        All ranks of the mesh: replica by replica, in each of them shard by shard.
    replicas : Replicas or None
        The ranks with this rank's shard; None if the mesh has shards alone.
    shards : Comm
        The ranks with this rank's replica.
    replica, shard : int
    """

    def __init__(self, comm: Comm, position: Position) -> None:
        everyone = comm.allgather(position)
        color, self.replica, self.shard = run_collectively(comm, lambda: coordinates(position, everyone))
        self.shape = len(position.replicas), len(position.shards)
        self.whole = _split(comm, color, self.replica * len(position.shards) + self.shard)
        self.shards, self.replicas = self.whole, None
        if position.replicated:
            self.shards = _split(self.whole, self.replica, self.shard)
            beside = _split(self.whole, self.shard, self.replica)
            self.replicas = Replicas(beside)
            self.replicas.mesh = self.whole
            beside.Free()

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages of this rank."""
        return sum((comm.traffic for comm in self._comms), Traffic())

    @property
    def _comms(self) -> list[Comm]:
        apart = [] if self.replicas is None else [self.shards, self.replicas]
        return [*apart, self.whole]

    @contextmanager
    def closed_if_refused(self) -> Iterator[Comm]:
        """``whole``, for a block in which ranks agree; ``close`` if they refuse to go on."""
        try:
            yield self.whole
        except Exception:  # of any class: raised on all ranks, so that all close
            self.close()
            raise

    def close(self) -> None:
        """Free the communicators (collective)."""
        for comm in self._comms:
            comm.Free()


def coordinates(position: Position, everyone: list[Position]) -> tuple[int, int, int]:
    """The first rank of this process's mesh, its replica and its shard; refuse processes that are not the mesh's."""
    by_rank = {one.rank: one for one in everyone}
    if len(by_rank) < len(everyone):
        raise InvalidArgument(f"the {len(everyone)} processes of comm must be one process group of PyTorch, got ranks "
                              f"{sorted(one.rank for one in everyone)}: give init_process_group rank=comm.rank and "
                              "world_size=comm.size, or pass comm= of the mesh's processes")
    beside = [by_rank[rank] for rank in position.replicas if rank in by_rank]
    wanted = {rank for one in beside for rank in one.shards} | set(position.replicas)
    if missing := sorted(wanted - set(by_rank)):
        raise InvalidArgument(f"comm must have all processes of the model's mesh, PyTorch's ranks {sorted(wanted)}, it "
                              f"lacks {missing}: pass comm= with all of them")
    return min(wanted), position.replicas.index(position.rank), position.shards.index(position.rank)


def _split(comm: Comm, color: int, key: int) -> Comm:
    return cast(Comm, comm.Split(color, key))
