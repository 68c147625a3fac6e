"""Journals of large runs that never were, made column by column: thousands of ranks in seconds."""

from __future__ import annotations

import numpy as np

from mpicomp.trace import journal, schema
from mpicomp.trace.metadata import run_metadata

KINDS = ("compute", "compress", "exchange", "step")  # in this order in every step
RANKS_PER_NODE = 32


def write_journals(spool, n_ranks: int, n_events: int, seed: int, sizes=(1 << 20, 1 << 24)) -> dict:
    """Journals of ``n_ranks`` ranks with ``n_events`` events each; what ``summary`` has to say about them.

    Returns
    -------
    dict
        For each kind: how many events there are, the sum of their durations (ns) and of the bytes sent.
    """
    rng = np.random.default_rng(seed)
    spool.mkdir()
    run = run_metadata("synthetic", n_ranks)
    labels = [[code, [kind, "ring" if kind == "exchange" else "", "", "float32", "sum"]]
              for code, kind in enumerate(KINDS)]  # fmt: skip
    offsets = rng.integers(0, 10**12, -(-n_ranks // RANKS_PER_NODE))  # reference less local clock, one a kernel
    offsets[0] = 0
    expected = {kind: {"count": 0, "total": 0, "nbytes_sent": 0} for kind in KINDS}
    for rank in range(n_ranks):
        events = _events(rng, n_events, sizes)
        offset = int(offsets[rank // RANKS_PER_NODE])
        events["t_start"] -= offset
        events["t_end"] -= offset
        facts = {"rank": rank, "hostname": f"node{rank // RANKS_PER_NODE:04d}", "pid": rank + 1, "cpus": "0",
                 "clock": f"kernel {rank // RANKS_PER_NODE}"}  # fmt: skip
        writer = journal.JournalWriter(journal.journal_path(spool, rank), {"run": run, "rank": facts})
        writer.append(journal.json_frame(b"LABL", labels) + journal.frame(b"EVNT", events.tobytes()))
        clocks = [{"t_local": t - offset, "offset": offset, "rtt": 2000} for t in (0, 10**10)]
        writer.append(journal.json_frame(b"CLCK", clocks))
        writer.append(journal.json_frame(b"DONE", {"reason": "closed", "n_dropped": 0}))
        writer.close()
        _count(expected, events)
    return expected


def _events(rng: np.random.Generator, n_events: int, sizes) -> np.ndarray:
    events = np.zeros(n_events, schema.EVENT)
    events["label"] = np.arange(n_events) % len(KINDS)
    events["step"] = np.arange(n_events) // len(KINDS)
    events["t_start"] = np.cumsum(rng.integers(1, 10_000, n_events))
    events["t_end"] = events["t_start"] + rng.integers(0, 1_000_000, n_events)
    exchange = events["label"] == KINDS.index("exchange")
    events["nbytes_dense"][exchange] = rng.choice(sizes, exchange.sum())
    events["nbytes_sent"][exchange] = rng.integers(1, 10_000, exchange.sum())
    return events


def _count(expected: dict, events: np.ndarray) -> None:
    for code, kind in enumerate(KINDS):
        rows = events[events["label"] == code]
        expected[kind]["count"] += len(rows)
        expected[kind]["total"] += int((rows["t_end"] - rows["t_start"]).sum())
        expected[kind]["nbytes_sent"] += int(rows["nbytes_sent"].sum())
