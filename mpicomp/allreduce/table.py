"""Table of the choices of ``auto``: by layout of ranks, the lengths up to which a schedule is the fastest.

``mpicomp tune`` measures such a table and writes it as JSON; ``MPICOMP_TUNING`` names the file. The built-in table is
from the measurements in docs/benchmarks.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import log2
from typing import Any

from ..errors import InvalidArgument

FORMAT, VERSION = "mpicomp-tuning", 1
DEVICES = ("cpu", "gpu")
WITHOUT_LIMIT = 2**63
MOST_RANKS = 2**31 - 1  # that MPI can count


@dataclass(frozen=True)
class Row:
    """The choices of one layout, for vectors on one device."""

    ranks_per_node: int  # of the fullest node
    nodes: int
    device: str
    choices: tuple[tuple[int, str], ...]  # (longest vector in bytes, schedule), ascending; the last has no limit
    measured: dict[str, object] = field(default_factory=dict, compare=False)  # place, time and method

    @property
    def layout(self) -> tuple[int, int, str]:
        return self.ranks_per_node, self.nodes, self.device

    def pick(self, nbytes: int) -> str:
        for limit, name in self.choices:
            if nbytes <= limit:
                return name
        raise AssertionError("the last choice has no limit")

    def native_limit(self) -> int:
        """Return the length in bytes up to which MPI's own all-reduce is chosen without a gap."""
        native = 0
        for limit, name in self.choices:
            if name != "native":
                break
            native = limit
        return native

    def same_kind(self, ranks_per_node: int, nodes: int) -> bool:
        """Return True if both layouts have one node or several, and one rank per node or several."""
        return (self.ranks_per_node == 1, self.nodes == 1) == (ranks_per_node == 1, nodes == 1)

    def distance(self, ranks_per_node: int, nodes: int) -> float:
        return abs(log2(self.ranks_per_node / ranks_per_node)) + abs(log2(self.nodes / nodes))


@dataclass(frozen=True)
class Table:
    """Measured rows of several layouts, before the built-in ones; ``source`` is the file they come from."""

    rows: tuple[Row, ...]
    source: str = "built in"

    def row(self, ranks_per_node: int, nodes: int, device: str) -> Row:
        """Return the row of this layout, or of the most similar one of its kind; else the built-in one."""
        if ranks_per_node * nodes == 1:
            return Row(1, 1, device, ((WITHOUT_LIMIT, "native"),))
        for rows in (self.rows, built_in(nodes).rows):
            similar = [row for row in rows if row.device == device and row.same_kind(ranks_per_node, nodes)]
            if similar:
                return min(similar, key=lambda row: row.distance(ranks_per_node, nodes))
        raise AssertionError(f"no row for {ranks_per_node} ranks on {nodes} nodes, {device}")

    def has(self, ranks_per_node: int, nodes: int, device: str) -> bool:
        """Return True if there is a row of exactly this layout."""
        return any(row.layout == (ranks_per_node, nodes, device) for row in self.rows)

    def with_row(self, row: Row) -> Table:
        """Return the table with another row in place of the one of the same layout."""
        others = [one for one in self.rows if one.layout != row.layout]
        everything = sorted([*others, row], key=lambda one: (one.device, one.nodes, one.ranks_per_node))
        return Table(tuple(everything), self.source)


BY_NETWORK = "by network"  # in built-in rows alone: `choice.between_nodes` decides, or MPI's own
# Bytes up to which MPI's own schedules are used: on one node, and per rank of a job on several nodes.
NATIVE_BYTES_ONE_NODE = 64 << 10
NATIVE_BYTES_PER_RANK = 32 << 10


def built_in(nodes: int = 1) -> Table:
    """Return the default choices for a job on ``nodes`` nodes."""
    nodes = max(2, nodes)
    rows = [
        _row(8, 1, "cpu", NATIVE_BYTES_ONE_NODE, "node_shared"),
        _row(1, nodes, "cpu", NATIVE_BYTES_PER_RANK * nodes, BY_NETWORK),
        _row(2, nodes, "cpu", NATIVE_BYTES_PER_RANK * 2 * nodes, "node_shared"),
        _row(8, 1, "gpu", 32 << 20, "node_shared"),
        _row(1, nodes, "gpu", NATIVE_BYTES_PER_RANK * nodes, "ring"),
        _row(2, nodes, "gpu", NATIVE_BYTES_PER_RANK * 2 * nodes, "ring"),
    ]
    return Table(tuple(rows))


def _row(ranks_per_node: int, nodes: int, device: str, native: int, above: str) -> Row:
    return Row(ranks_per_node, nodes, device, ((native, "native"), (WITHOUT_LIMIT, above)))


# ---- the file

def load(text: str, source: str, names: list[str]) -> Table:
    """Return the table in a file's ``text``; ``names`` are the known schedules."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise InvalidArgument(
                f"{source}: expected format {FORMAT!r} version {VERSION}, got {document['format']!r} version "
                f"{document['version']!r}: write the table anew with mpicomp tune"
            )
        rows = tuple(_load_row(row, source, names) for row in document["rows"])
        return Table(rows, source)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"{source} is no tuning table ({type(error).__name__}: {error}): write one with mpicomp tune"
        ) from error


def _load_row(row: dict[str, Any], source: str, names: list[str]) -> Row:
    choices = []
    for choice in row["choices"]:
        name, limit = choice["algorithm"], choice["max_bytes"]
        if name not in names:
            raise InvalidArgument(f"{source}: unknown algorithm {name!r}: choose one of {', '.join(names)}")
        choices.append((WITHOUT_LIMIT if limit is None else int(limit), name))
    limits = [limit for limit, _ in choices]
    layout = int(row["ranks_per_node"]), int(row["nodes"])
    if not 1 <= min(layout) <= max(layout) <= MOST_RANKS or row["device"] not in DEVICES:
        raise InvalidArgument(f"{source}: no such layout: {layout[0]} ranks on {layout[1]} nodes, {row['device']}")
    if not limits or limits != sorted(limits) or limits[-1] != WITHOUT_LIMIT:
        raise InvalidArgument(f"{source}: max_bytes must ascend and end with null, got {limits}")
    return Row(*layout, row["device"], tuple(choices), dict(row.get("measured", {})))


def dump(table: Table) -> dict[str, object]:
    """Return the table as the JSON document that `load` reads."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rows": [
            {
                "ranks_per_node": row.ranks_per_node,
                "nodes": row.nodes,
                "device": row.device,
                "choices": [
                    {"max_bytes": None if limit == WITHOUT_LIMIT else limit, "algorithm": name}
                    for limit, name in row.choices
                ],
                "measured": row.measured,
            }
            for row in table.rows
        ],
    }


def choices_of(times: dict[int, dict[str, float]], margin: float) -> tuple[tuple[int, str], ...]:
    """Return the choices from seconds by length and schedule; keep native unless another is faster by ``margin``.

    The limit between two measured lengths is their geometric mean.
    """
    sizes = sorted(times)
    fastest = []
    for size in sizes:
        best = min(times[size], key=times[size].__getitem__)
        native = times[size].get("native")
        fastest.append(best if native is None or times[size][best] * (1 + margin) < native else "native")
    choices = []
    for index, name in enumerate(fastest):
        last = index + 1 == len(sizes)
        if last or fastest[index + 1] != name:
            limit = WITHOUT_LIMIT if last else round((sizes[index] * sizes[index + 1]) ** 0.5)
            choices.append((limit, name))
    return tuple(choices)
