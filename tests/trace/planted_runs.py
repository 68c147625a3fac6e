"""Traces of runs that never were, written column by column: thousands of ranks in a second, with answers known."""

from __future__ import annotations

import h5py
import numpy as np

from mpicomp._util.hdf5 import describe
from mpicomp.trace import schema, tables
from mpicomp.trace.columns import write_scale, write_table


class Run:
    """Collects events as columns; ``write`` makes the file. Times are ns on the reference clock.

    ``offset`` (ranks,) is what /clock says (reference minus local): local times are written shifted by it.
    """

    def __init__(self, n_ranks: int, *, offset=None, rtt=None, ranks_per_node: int = 4, status=None):
        self.n_ranks = n_ranks
        self.offset = np.zeros(n_ranks, np.int64) if offset is None else np.asarray(offset)
        self.rtt = np.zeros(n_ranks, np.int64) if rtt is None else np.asarray(rtt)
        self.node = np.arange(n_ranks) // ranks_per_node
        self.status = status or ["closed"] * n_ranks
        self.metrics: dict[str, dict] = {}
        self.open: list[tuple] = []
        self._parts: list[dict] = []
        self._names = {field: {"none": 0} for field in schema.LABEL_FIELDS}

    def add(self, kind: str, rank, step, begin, end, *, algo="", scheme="", flags=0, **sizes):
        """Events of one kind; arrays are broadcast against each other."""
        names = {"kind": kind, "algo": algo, "scheme": scheme, "dtype": "float32", "op": "sum"}
        codes = {field: self._names[field].setdefault(name or "none", len(self._names[field]))
                 for field, name in names.items()}  # fmt: skip
        sizes = {name: sizes.get(name, 0) for name in ("nbytes_dense", "nbytes_sent", "nbytes_recv", "nelem")}
        columns = {"rank": rank, "step": step, "t_start": begin, "t_end": end, "flags": flags, **codes, **sizes}
        arrays = np.broadcast_arrays(*columns.values())
        self._parts.append(dict(zip(columns, (array.ravel() for array in arrays), strict=True)))
        return self

    def metric(self, name: str, values, rank=0):
        step = np.arange(len(values))
        self.metrics[name] = {"step": step, "rank": np.full(len(step), rank), "t": step, "value": np.asarray(values)}
        return self

    def write(self, path):
        events = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        local = self.offset[events["rank"]]
        events["t_start"], events["t_end"] = events["t_start"] - local, events["t_end"] - local
        order = np.lexsort((-events["t_end"], events["t_start"], events["rank"]))
        events = {name: column[order] for name, column in events.items()}
        events["event"] = np.arange(len(order))
        events["seq"] = tables.ordinal(events["rank"].astype(np.int64) * 1000 + events["kind"])
        counts = np.bincount(events["rank"], minlength=self.n_ranks)
        with h5py.File(path, "w") as file:
            self._facts(file)
            write_table(file, "events", schema.EVENTS, events, scale="event")
            write_scale(file, "rank_offset", schema.RANK_OFFSET, np.append(0, np.cumsum(counts)))
            write_table(file, "ranks", schema.RANKS, self._ranks(counts), scale="rank")
            shared = (self.rtt == 0).astype(int)
            write_table(file, "clock", schema.CLOCK, {"rank": np.arange(self.n_ranks), "t_local": -self.offset,
                   "offset": self.offset, "rtt": self.rtt, "shared": shared})  # fmt: skip
            for field, names in self._names.items():
                column = schema.Column("S64", "1", field)
                write_scale(file.require_group("vocab"), field, column, np.array(list(names), "S"))
            write_table(file, "steps", schema.STEPS, _steps(events, self._names["kind"].get("step", -1)))
            write_table(file, "summary", schema.SUMMARY, {name: [] for name in schema.SUMMARY})
            file.create_group("metrics")
            for name, columns in self.metrics.items():
                write_table(file, f"metrics/{name}", schema.METRICS, columns)
            rows = list(zip(*self.open, strict=True)) or [[]] * len(schema.OPEN)
            write_table(file, "open", schema.OPEN, dict(zip(schema.OPEN, rows, strict=True)))
        return path

    def _facts(self, file):
        describe(file, {"Conventions": schema.CONVENTIONS, "title": "planted", "creator": "tests",
                        "created": "2026-01-01", "n_ranks": self.n_ranks, "n_nodes": len(set(self.node)),
                        "command_line": "[]", "environment": "{}", "complete": True})  # fmt: skip

    def _ranks(self, counts):
        n = np.arange(self.n_ranks)
        return {"rank": n, "node": self.node, "local_rank": n, "hostname": np.char.mod(b"node%d", self.node),
                "pid": n, "cpus": np.full(len(n), b"0"), "n_events": counts, "n_dropped": 0 * n,
                "status": [schema.STATUS[state] for state in self.status]}  # fmt: skip


def _steps(events, code):
    rows = np.flatnonzero((events["kind"] == code) & (events["step"] >= 0))
    return {name: events[name][rows] for name in schema.STEPS}


def lockstep(n_ranks: int, n_steps: int, delay, rng, *, jitter: int = 1_000, transfer: int = 50_000, **facts) -> Run:
    """Steps of computation, then an exchange that ends for all ``transfer`` ns after the last rank came.

    ``delay`` (ranks, steps) or broadcastable is added to a computation of 200 us and a jitter of so many ns.
    """
    run = Run(n_ranks, **facts)
    rank, step = np.arange(n_ranks)[:, None], np.arange(n_steps)[None, :]
    work = 200_000 + rng.integers(0, jitter, (n_ranks, n_steps)) + np.broadcast_to(delay, (n_ranks, n_steps))
    length = work.max(axis=0) + transfer + 10_000
    begin = np.broadcast_to(10**12 + np.concatenate([[0], np.cumsum(length)[:-1]]), work.shape)
    end = begin + work.max(axis=0) + transfer
    run.add("compute", rank, step, begin + 1, begin + work)
    run.add("exchange", rank, step, begin + work, end, algo="ring", nbytes_dense=4_000_000)
    run.add("step", rank, step, begin, end + 1_000)
    run.work, run.length = work, end + 1_000 - begin
    return run
