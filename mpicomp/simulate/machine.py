"""The machine a prediction is for: an immutable value, read from a small file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, fields, replace

import numpy as np

from ..errors import InvalidArgument
from .ghost_ops import CALL, KERNELS, SAMPLED, STEP, TOP_K_LEAST, TOP_K_SHORT
from .link import Place

FORMAT, VERSION = "mpicomp-machine", 1
DISTRIBUTIONS = ("none", "gaussian", "exponential")
LONG = 64 << 10  # bytes of a message that MPI libraries send by a handshake on all common networks
MOST_SECONDS = 1e6  # 12 days: of a message, of one element, of a delay
MOST_BYTES = 1e18  # per second, or at once
MOST_RANKS = 1 << 20  # per node
MOST_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Wire:
    """Costs of a message on its way."""

    latency: float  # seconds from the sender's last byte to the receiver's
    bandwidth: float  # bytes per second in each direction: of a node's link, or of a rank in its node's memory
    overhead: float = 0.0  # seconds of the rank's own time for each message sent and each received
    handshake: float = 0.0  # seconds by which a message of LONG bytes or more is later: both ranks agree on it first
    processor: float = 0.0  # seconds of the ranks' own time per byte sent and received; sender and receiver share it
    burst: float = 0.0  # bytes that pass a rested link at once: the bucket of a token-bucket shaper


@dataclass(frozen=True)
class Jitter:
    """Independent delays of every rank in every step, before it begins to exchange."""

    distribution: str = "none"
    scale: float = 0.0  # seconds: standard deviation (gaussian), mean (exponential)
    seed: int = 0

    def delays(self, steps: int, ranks: int) -> np.ndarray:
        """Seconds, (steps, ranks). Gaussian ones are about the compute time, so negative, too."""
        rng = np.random.default_rng(self.seed)
        if self.distribution == "gaussian":
            return rng.normal(0.0, self.scale, (steps, ranks))
        if self.distribution == "exponential":
            return rng.exponential(self.scale, (steps, ranks))
        return np.zeros((steps, ranks))


@dataclass(frozen=True)
class Machine:
    """Nodes joined by a network that is never the bottleneck: each has a link of its own, which its ranks share."""

    between: Wire
    within: Wire
    ranks_per_node: int = 1
    kernels: dict[str, float] = field(default_factory=dict)  # seconds per element (float32); per step, call
    jitter: Jitter = Jitter()
    measured: dict[str, object] = field(default_factory=dict, compare=False)  # where, when and how

    def rates(self) -> np.ndarray:
        """Return seconds per element of every kernel; one that was not measured takes as long as a copy."""
        copy = self.kernels.get("copy", 0.0)
        top_k, union = (self.kernels.get(name, copy) for name in ("top_k", "union"))
        known = {STEP: 0.0, CALL: 0.0, TOP_K_SHORT: top_k, TOP_K_LEAST: SAMPLED * top_k, "add_lists": union,
                 **self.kernels}
        return np.array([known.get(name, copy) for name in KERNELS])

    def place(self, size: int) -> Place:
        """Rank 0 of ``size`` ranks."""
        return Place(0, size, self.ranks_per_node, self.between.bandwidth)

    def faster(self, factor: float) -> Machine:
        """The same machine with ``factor`` times the bandwidth between nodes."""
        return replace(self, between=replace(self.between, bandwidth=factor * self.between.bandwidth))

    def quiet(self) -> Machine:
        """The same machine without jitter."""
        return replace(self, jitter=Jitter())


def dump(machine: Machine) -> dict[str, object]:
    """The machine as the document that ``load`` reads."""
    return {"format": FORMAT, "version": VERSION, **asdict(machine)}


def load(document: object, source: str) -> Machine:
    """The machine in a document read from the file ``source``."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"{source} is no machine: expected a table, got {type(document).__name__}")
    if document.get("format", FORMAT) != FORMAT or document.get("version", VERSION) != VERSION:
        raise InvalidArgument(f"{source}: expected format {FORMAT!r} version {VERSION}, got {document.get('format')!r} "
                              f"version {document.get('version')!r}: write the file anew with mpicomp tune --machine")
    _refuse_unknown(document, {"format", "version", *_names(Machine)}, source)
    between = _wire(document.get("between"), "between", source)
    within = _wire(document["within"], "within", source) if "within" in document else between
    per_node = _whole(document.get("ranks_per_node", 1), "ranks_per_node", source, 1, MOST_RANKS)
    kernels, jitter, measured = (_table(document, name, source) for name in ("kernels", "jitter", "measured"))
    _refuse_unknown(kernels, KERNELS, f"{source}, kernels")
    rates = {name: _number(value, f"kernels.{name}", source) for name, value in kernels.items()}
    return Machine(between, within, per_node, rates, _jitter(jitter, source), measured)


def _table(document: dict[str, object], name: str, source: str) -> dict[str, object]:
    """The table of a name; empty if there is none."""
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidArgument(f"{source}: {name} must be a table, got {table!r}")
    return table


def _wire(table: object, name: str, source: str) -> Wire:
    if not isinstance(table, dict) or not {"latency", "bandwidth"} <= set(table):
        raise InvalidArgument(f"{source}: {name} must give latency (seconds) and bandwidth (bytes per second), "
                              f"got {table!r}")
    _refuse_unknown(table, _names(Wire), f"{source}, {name}")
    limits = {"bandwidth": (1.0, MOST_BYTES), "burst": (0.0, MOST_BYTES)}
    return Wire(**{key: _number(value, f"{name}.{key}", source, *limits.get(key, ())) for key, value in table.items()})


def _jitter(table: dict[str, object], source: str) -> Jitter:
    _refuse_unknown(table, _names(Jitter), f"{source}, jitter")
    distribution = table.get("distribution", "none")
    if distribution not in DISTRIBUTIONS:
        raise InvalidArgument(f"{source}: jitter.distribution must be one of {', '.join(DISTRIBUTIONS)}, "
                              f"got {distribution!r}")
    seed = _whole(table.get("seed", 0), "jitter.seed", source, 0, MOST_SEED)
    return Jitter(distribution, _number(table.get("scale", 0.0), "jitter.scale", source), seed)


def _number(value: object, name: str, source: str, least: float = 0.0, most: float = MOST_SECONDS) -> float:
    """The number in a document; true and false are none, and beyond these limits predictions would overflow."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise InvalidArgument(f"{source}: {name} must be a number from {least:g} to {most:g}, got {value!r}")


def _whole(value: object, name: str, source: str, least: int, most: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise InvalidArgument(f"{source}: {name} must be a whole number from {least} to {most}, got {value!r}")


def _names(kind: type[Machine | Wire | Jitter]) -> list[str]:
    return [one.name for one in fields(kind)]


def _refuse_unknown(table: Iterable[str], known: Collection[str], where: str) -> None:
    unknown = set(table) - set(known)
    if unknown:
        raise InvalidArgument(f"{where}: unknown {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
