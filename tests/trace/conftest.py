"""One rank without MPI, and journals of ranks that never ran."""

import numpy as np
import pytest

from mpicomp.trace import journal, schema
from mpicomp.trace.metadata import run_metadata

PACK_EVENT = journal.struct.Struct(schema.EVENT_STRUCT).pack
PACK_METRIC = journal.struct.Struct(schema.METRIC_STRUCT).pack


class Solo:
    """Stand-in for a communicator of one rank, for the recorder."""

    rank = 0
    size = 1

    def fail_together(self, error=None):
        if error is not None:
            raise error


class Planted:
    """Writes the journal of a rank from facts that the test chooses."""

    def __init__(self, spool, rank, run, *, host="node0", clock="", offsets=()):
        facts = {"rank": rank, "hostname": host, "pid": 100 + rank, "cpus": "0-3", "clock": clock}
        spool.mkdir(exist_ok=True)
        self.writer = journal.JournalWriter(journal.journal_path(spool, rank), {"run": run, "rank": facts})
        self.labels = {}
        self.path = self.writer.path
        for t_local, offset, rtt in offsets:
            self.frame(b"CLCK", [{"t_local": t_local, "offset": offset, "rtt": rtt}])

    def frame(self, tag, value):
        self.writer.append(journal.json_frame(tag, value))

    def events(self, *rows):
        """Rows are (kind, t_start, t_end, step) with optional sizes (dense, sent, received) and flags."""
        packed = []
        for kind, t_start, t_end, step, *sizes in rows:
            label = (kind, "ring", "scalecom:chunk=4", "float32", "sum")
            if label not in self.labels:
                self.labels[label] = len(self.labels)
                self.frame(b"LABL", [[self.labels[label], label]])
            dense, sent, received, flags = [*sizes, 0, 0, 0, 0][:4]
            packed.append(PACK_EVENT(t_start, t_end, dense, sent, received, dense // 4, step, self.labels[label],
                                     flags))  # fmt: skip
        self.writer.append(journal.frame(b"EVNT", b"".join(packed)))
        return self

    def metric(self, name, *values):
        self.frame(b"NAME", [[0, name]])
        rows = b"".join(PACK_METRIC(0, value, step, 0) for step, value in enumerate(values))
        self.writer.append(journal.frame(b"METR", rows))
        return self

    def done(self, reason="closed", n_dropped=0):
        self.frame(b"DONE", {"reason": reason, "n_dropped": n_dropped})
        self.writer.close()
        return self


@pytest.fixture
def solo():
    return Solo()


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "run.h5.spool"


@pytest.fixture
def plant(spool):
    """plant(rank, ...) starts the journal of one rank of a run of ``plant.run["n_ranks"]`` ranks."""

    def make(rank, **facts):
        return Planted(facts.pop("spool", spool), rank, facts.pop("run", make.run), **facts)

    make.run = run_metadata("planted", n_ranks=3)
    return make


@pytest.fixture
def planted_trace(tmp_path, spool, plant):
    """A trace of three ranks and 10 steps; rank 2 comes 1000 ns late to every exchange."""
    from mpicomp.trace import recover

    for rank in range(3):
        own = plant(rank, host=f"node{rank // 2}", clock="same")
        for step in range(10):
            begin = 10_000 * step
            arrival = begin + 2_000 + (1_000 if rank == 2 else 0)
            own.events(
                ("compute", begin, arrival, step),
                ("exchange", arrival, begin + 5_000, step, 4_000, 100, 200),
                ("step", begin, begin + 6_000 + step, step),
            )
        own.metric("loss", *(1.0 / (step + 1) for step in range(10))).done()
    recover(spool, tmp_path / "run.h5")
    return tmp_path / "run.h5"


@pytest.fixture
def rng():
    seed = np.random.SeedSequence().entropy % 2**32
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"
