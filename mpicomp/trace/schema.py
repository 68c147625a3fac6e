"""The names, types and units of a trace: the one table that writer, reader and documentation agree on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CONVENTIONS = "MPICOMP-trace-1.0"

#: The strings of an event. Each distinct combination is one *label*, so that an event costs one look-up.
LABEL_FIELDS = ("kind", "algo", "scheme", "dtype", "op")

#: One event in a journal: 56 bytes, no padding, little-endian on every machine.
EVENT = np.dtype(
    [
        ("t_start", "<i8"),
        ("t_end", "<i8"),
        ("nbytes_dense", "<u8"),
        ("nbytes_sent", "<u8"),
        ("nbytes_recv", "<u8"),
        ("nelem", "<u8"),
        ("step", "<i4"),
        ("label", "<u2"),
        ("flags", "<u2"),
    ]
)
EVENT_STRUCT = "<qqQQQQiHH"

#: One value of a metric in a journal: 32 bytes.
METRIC = np.dtype([("t", "<i8"), ("value", "<f8"), ("step", "<i8"), ("name", "<i8")])
METRIC_STRUCT = "<qdqq"

#: Bits of ``flags``.
WARMUP, IN_PLACE, ERROR, TRUNCATED = 1, 2, 4, 8
FLAGS = {"warm_up": WARMUP, "in_place": IN_PLACE, "error": ERROR, "truncated": TRUNCATED}

#: How a rank's recording ended; the codes of /ranks/status.
STATUS = {
    "closed": 0,  # recorded to the end
    "failed": 1,  # the rank ended with an exception; everything earlier is recorded
    "killed": 2,  # the journal ends without a last frame: at most the last second is missing
    "torn": 3,  # the journal ends in a damaged frame, which was dropped
    "truncated": 4,  # the disk was full: later events were dropped, and counted
    "missing": 5,  # no journal was found
    "interrupted": 6,  # SIGINT or SIGTERM ended the rank, such as a time limit; everything earlier is recorded
}

#: Kinds that happen on all ranks together, the best measure of lateness first.
COLLECTIVE_KINDS = ("exchange", "collective", "allreduce")


class Column(NamedTuple):
    dtype: str
    units: str
    long_name: str


EVENTS = {
    "event": Column("u8", "1", "row number, the scale of this table"),
    "rank": Column("i4", "1", "rank that recorded the event"),
    "step": Column("i4", "1", "training step, -1 if none was set"),
    "seq": Column("u8", "1", "number of earlier events of this kind on the rank: matches calls over ranks"),
    "kind": Column("u2", "1", "what happened"),
    "algo": Column("u2", "1", "all-reduce algorithm"),
    "scheme": Column("u2", "1", "compression scheme"),
    "dtype": Column("u2", "1", "element type"),
    "op": Column("u2", "1", "reduction"),
    "t_start": Column("i8", "ns", "begin, on the rank's own monotonic clock"),
    "t_end": Column("i8", "ns", "end, on the rank's own monotonic clock"),
    "nbytes_dense": Column("u8", "byte", "size of the dense buffer"),
    "nbytes_sent": Column("u8", "byte", "bytes this rank handed to MPI"),
    "nbytes_recv": Column("u8", "byte", "bytes this rank received from MPI"),
    "nelem": Column("u8", "1", "elements of the dense buffer"),
    "flags": Column("u2", "1", "bits: 1 warm-up, 2 in place, 4 error, 8 truncated"),
}

RANKS = {
    "rank": Column("i4", "1", "rank, the scale of this table"),
    "node": Column("i4", "1", "number of the node, in order of first appearance"),
    "local_rank": Column("i4", "1", "number of the rank on its node"),
    "hostname": Column("S64", "1", "name of the node"),
    "pid": Column("i8", "1", "process id"),
    "cpus": Column("S64", "1", "processors the rank may run on"),
    "n_events": Column("u8", "1", "events recorded"),
    "n_dropped": Column("u8", "1", "events dropped because the disk was full"),
    "status": Column("u1", "1", "how the recording ended"),
}

CLOCK = {
    "rank": Column("i4", "1", "rank whose clock was compared with the reference rank's"),
    "t_local": Column("i8", "ns", "when, on the rank's own monotonic clock"),
    "offset": Column("i8", "ns", "reference clock minus local clock"),
    "rtt": Column("i8", "ns", "shortest round trip seen; the offset is known to half of it"),
    "shared": Column("u1", "1", "1 if the rank reads the very clock of the reference rank: offset taken as 0"),
}

STEPS = {
    "step": Column("i4", "1", "training step"),
    "rank": Column("i4", "1", "rank"),
    "t_start": Column("i8", "ns", "first begin of the step on this rank"),
    "t_end": Column("i8", "ns", "last end of the step on this rank"),
}

OPEN = {
    "rank": Column("i4", "1", "rank that was in an event when its recording ended"),
    "kind": Column("S64", "1", "event that it was in for longer than a second"),
    "step": Column("i4", "1", "training step, -1 if none was set"),
    "t_start": Column("i8", "ns", "begin, on the rank's own monotonic clock"),
    "t": Column("i8", "ns", "time of this note, on the rank's own monotonic clock"),
}

METRICS = {
    "step": Column("i8", "1", "training step"),
    "rank": Column("i4", "1", "rank that recorded the value"),
    "t": Column("i8", "ns", "when, on the rank's own monotonic clock"),
    "value": Column("f8", "1", "the value"),
}

SUMMARY = {
    "kind": Column("S64", "1", "what happened"),
    "algo": Column("S64", "1", "all-reduce algorithm"),
    "scheme": Column("S64", "1", "compression scheme"),
    "size_bin": Column("u8", "byte", "dense size rounded up to a power of two, 0 if unknown"),
    "count": Column("u8", "1", "events"),
    "median": Column("i8", "ns", "median duration"),
    "p90": Column("i8", "ns", "90th percentile of the durations"),
    "p99": Column("i8", "ns", "99th percentile of the durations"),
    "max": Column("i8", "ns", "longest duration"),
    "total": Column("i8", "ns", "sum of the durations over all ranks"),
    "nbytes_sent": Column("u8", "byte", "bytes sent, over all ranks"),
    "nbytes_recv": Column("u8", "byte", "bytes received, over all ranks"),
}

#: The scale of a table whose rows have no name of their own, so that every column has a named dimension.
ROW = Column("u8", "1", "row number, the scale of this table")

RANK_OFFSET = Column("u8", "1", "rows of rank r in /events are [rank_offset[r], rank_offset[r+1])")

#: The groups of a file with the columns each of them has; /metrics/<name> has those of METRICS.
TABLES = {"ranks": RANKS, "clock": {"row": ROW, **CLOCK}, "events": EVENTS, "steps": {"row": ROW, **STEPS},
          "summary": {"row": ROW, **SUMMARY}}  # fmt: skip
