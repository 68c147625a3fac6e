"""The readers of files and texts: traces, journals, tuning tables, configurations, data sets, results of the bench."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import forked
import kept
import numpy as np
import scipy.io
import scipy.sparse
import sets
from kept import written

from mpicomp.allreduce import ALGORITHMS
from mpicomp.allreduce.table import BY_NETWORK, WITHOUT_LIMIT, Row, Table, dump, load
from mpicomp.apps import data, idx, matfile, read_matlab
from mpicomp.bench import documents, hdf5
from mpicomp.bench.compare import Baseline
from mpicomp.bench.merge_runs import merge
from mpicomp.bench.schema import FIELDS, full
from mpicomp.cli import config
from mpicomp.cli.commands import COMMANDS
from mpicomp.cli.root import root
from mpicomp.comm.safety.fault_injection import parse
from mpicomp.errors import MpicompError
from mpicomp.schemes import Scheme, names
from mpicomp.trace import journal, open_trace, recover, schema, validate
from mpicomp.trace.metadata import run_metadata

Read = Callable[[bytes], None]


def _rows_of_a_result(path: str) -> None:
    sys.argv[1:] = [path]
    hdf5.main()


# What those who fuzz put in the place of ``subprocess`` in these modules.
FORKS = {matfile: forked.instead_of_subprocess(read_matlab.main),
         documents: forked.instead_of_subprocess(_rows_of_a_result)}  # fmt: skip


# ---- traces

def journal_bytes(folder: Path, rng: np.random.Generator) -> bytes:
    """The journal of the only rank of a run."""
    path = journal.journal_path(folder, 0)
    path.unlink(missing_ok=True)
    facts = {"rank": 0, "hostname": "a", "pid": 1, "cpus": "0", "clock": ""}
    run = {**run_metadata("fuzzed", n_ranks=1), "run_id": "0" * 32, "created": "", "command_line": ["mpicomp"],
           "environment": {}}  # fmt: skip
    own = journal.JournalWriter(path, {"run": run, "rank": facts})
    own.append(journal.json_frame(b"CLCK", [{"t_local": 1, "offset": 2, "rtt": 3}]))
    own.append(journal.json_frame(b"LABL", [[0, ["step", "ring", "topk", "float32", "sum"]]]))
    pack = struct.Struct(schema.EVENT_STRUCT).pack
    for batch in range(int(rng.integers(1, 4))):
        rows = (pack(10 * batch + i, 10 * batch + i + 5, 4, 3, 2, 1, batch, 0, 0) for i in range(int(rng.integers(5))))
        own.append(journal.frame(b"EVNT", b"".join(rows)))
    own.append(journal.json_frame(b"NAME", [[0, "loss"]]))
    own.append(journal.frame(b"METR", struct.Struct(schema.METRIC_STRUCT).pack(5, 0.5, 0, 0)))
    own.append(journal.json_frame(b"DONE", {"reason": "closed", "n_dropped": 0}))
    own.close()
    return path.read_bytes()


def a_journal(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    whole = journal_bytes(folder, rng)

    def read(content: bytes) -> None:
        own = journal.Journal(written(folder, "rank00000.mpcj", content))
        assert len(own.events()) == own.n_events and len(own.metrics()) == own.n_metrics

    return whole, read


def honest_frames(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A journal's JSON behind a right checksum: whole frames of nonsense."""
    start = journal_bytes(folder, rng)
    tag, value = [(b"LABL", [[1, ["a"] * 5]]), (b"NAME", [[1, "x"]]), (b"DONE", {"reason": "closed", "n_dropped": 3}),
                  (b"CLCK", [{"t_local": 1, "offset": 0, "rtt": 1}]),
                  (b"OPEN", [{"kind": "step", "step": 1, "t_start": 2, "t": 3}])][int(rng.integers(5))]  # fmt: skip

    def read(content: bytes) -> None:
        own = journal.Journal(written(folder, "rank00000.mpcj", start + journal.frame(tag, content)))
        assert len(own.events()) == own.n_events

    return json.dumps(value).encode(), read


def a_trace(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """The HDF5 file of a run."""
    path, spool = folder / "run.h5", folder / "spool"
    if not (folder / "whole.h5").exists():
        spool.mkdir(exist_ok=True)
        journal_bytes(spool, np.random.default_rng(1))  # whichever case comes first
        recover(spool, folder / "whole.h5", force=True)

    def read(content: bytes) -> None:
        written(folder, path.name, content)
        validate(path)
        with open_trace(path) as trace:
            events = trace.events()
            assert len({len(column) for column in events.values()}) == 1

    return (folder / "whole.h5").read_bytes(), read


# ---- tables, configurations, texts

def tuning(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    def read(content: bytes) -> None:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:  # `tuning.shared_table` reads the file and reports this
            raise MpicompError("no text") from error
        table = load(text, "table.json", list(ALGORITHMS))
        for layout in ((1, 1), (4, 1), (2, 3), (1, 8)):
            assert table.row(*layout, "cpu").pick(int(rng.integers(0, 2**40))) in (*ALGORITHMS, BY_NETWORK)

    row = Row(4, 1, "cpu", ((1000, "native"), (WITHOUT_LIMIT, "ring")), {"when": "now"})
    return json.dumps(dump(Table((row, replace(row, nodes=3), replace(row, device="gpu"))))).encode(), read


CONFIG = b"""[bench]
sizes = "1K,64K"
algorithm = ["native", "ring"]
iters = 20
[train.logreg]
data = "synthetic:n=200,d=30"
epochs = 3
force = true
step-size = 0.5
target-bits = [1e3, 1e4]
[tune]
"""


def toml(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    context = root.make_context("mpicomp", [], resilient_parsing=True)

    def read(content: bytes) -> None:
        tables = config.read(str(written(folder, "mpicomp.toml", content)))
        for name, table in tables.items():
            if name in COMMANDS:
                config.defaults(root.get_command(context, name), table, name)

    return CONFIG, read


def scheme(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    text = f"{rng.choice(names())}:seed={rng.integers(100)},layers=per-tensor,dense=first+1d"

    def read(content: bytes) -> None:
        parsed = Scheme.parse(content.decode(errors="surrogateescape"))
        assert Scheme.parse(str(parsed)) == parsed

    return text.encode(), read


def fault(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    def read(content: bytes) -> None:
        assert 0 <= parse(content.decode(errors="surrogateescape"), 4).rank < 4

    return f"kill:rank={rng.integers(4)},call={rng.integers(1, 99)},message=2".encode(), read


# ---- data sets

def libsvm(pack: Callable[[bytes], bytes], folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """Bent before compressing, or after."""
    rows = [f"{1 - 2 * (i % 2):+d} " + " ".join(f"{c + 1}:{rng.normal():.4f}" for c in range(9) if rng.random() < 0.5)
            for i in range(12)]  # fmt: skip
    text = ("\n".join(rows) + " 10:1 # a comment\n").encode()
    inside = rng.random() < 0.3

    def read(content: bytes) -> None:
        loaded = data.load(str(written(folder, "set.txt", pack(content) if inside else content)))
        assert loaded.features.shape[0] == loaded.labels.size
        loaded.features.times(np.ones(loaded.features.shape[1]))

    return text if inside else pack(text), read


def matlab(kind: str, folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    features = rng.standard_normal((10, 4))
    features = scipy.sparse.csc_matrix(features * (features > 0)) if kind.startswith("sparse") else features
    file = io.BytesIO()
    scipy.io.savemat(file, {"X": features, "Y": np.arange(10) % 2}, format="4" if kind.endswith("4") else "5",
                     do_compression=kind == "compressed")  # fmt: skip

    def read(content: bytes) -> None:
        loaded = data.load(str(written(folder, "set.mat", content)))
        assert loaded.features.shape[0] == loaded.labels.size
        loaded.features.times(np.ones(loaded.features.shape[1]))

    return file.getvalue(), read


def pictures(pack: Callable[[bytes], bytes], folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """An IDX file. Bent before compressing, or after."""
    shape, inside = tuple(rng.integers(1, 9, int(rng.integers(1, 4))).tolist()), rng.random() < 0.3
    idx.write(folder / "whole", rng.integers(0, 256, shape, np.uint8))
    content = gzip.decompress((folder / "whole").read_bytes())
    name = "set" if pack is bytes else "set.gz"

    def read(content: bytes) -> None:
        written(folder, name, pack(content) if inside else content)
        array = idx.read(folder, "set", len(shape))
        assert array.dtype == np.uint8 and array.ndim == len(shape)

    return content if inside else pack(content), read


def synthetic(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    def read(content: bytes) -> None:
        text = content.decode(errors="surrogateescape")
        if all(len(digits) < 4 for digits in "".join(c if c.isdecimal() else " " for c in text).split()):
            data.load("synthetic:" + text)  # larger ones are right, and take long

    return b"n=20,d=5,seed=3", read


# ---- results of the bench

def result(suffix: str, folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A baseline: read, compared with, merged. One of a few valid ones, since HDF5 takes long to write them."""
    which = int(rng.integers(20))
    own = np.random.default_rng(which)
    rows = [full({
        **{name: float(own.uniform(1, 9)) for name, field in FIELDS.items() if field.kind is float},
        "collective": "allreduce", "algorithm": "ring", "part": "step", "dtype": "float32", "op": "sum", "root": -1,
        "place": "out", "device": "cpu", "nbytes": 4096 << i, "count": 1024, "n_ranks": 4, "iters": 20, "warmup": 2,
        "wire_bytes": 6144, "wire_modelled": False, "ok": True, "n_wrong": 0, "t_phase_us": {"select": 1.5}})
        for i in range(2)]  # fmt: skip
    whole = {"format": documents.FORMAT, "version": documents.VERSION, "mpi": {"name": "x"}, "seed": 1,
             "ranks": [{"rank": 0, "host": "here"}], "noise": {"foreign_cpu_share": 0.1}, "rows": rows}  # fmt: skip
    earlier = {**whole, "rows": [{**row, "t_med_us": 2 * row["t_med_us"]} for row in rows]}
    good, bad = folder / f"good{which}{suffix}", folder / f"bad{suffix}"
    if not good.exists():
        documents.write(good, whole, suffix)

    def read(content: bytes) -> None:
        written(folder, bad.name, content)
        document = documents.read(bad)
        baseline = Baseline(document, 5, str(bad))
        baseline.compare([dict(row) for row in rows])
        baseline.verdict({**document, "rows": document["rows"] or rows})
        merge({"a": earlier, "b": document})

    return good.read_bytes(), read


def decoders() -> Iterator[tuple[str, Callable]]:
    """Names, and what makes a valid file in a folder, with its reader."""
    yield "journal", a_journal
    yield "journal frame", honest_frames
    yield "trace hdf5", a_trace
    yield "tuning json", tuning
    yield "config toml", toml
    yield "scheme text", scheme
    yield "fault text", fault
    for name, pack in (("plain", bytes), ("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)):
        yield f"libsvm {name}", partial(libsvm, pack)
    for kind in ("dense 5", "compressed", "sparse 5", "dense 4", "sparse 4"):
        yield f"matlab {kind}", partial(matlab, kind)
    yield "idx plain", partial(pictures, bytes)
    yield "idx gzip", partial(pictures, gzip.compress)
    yield "synthetic text", synthetic
    yield from sets.decoders()
    yield from kept.decoders()
    for suffix in (".json", ".csv", ".h5"):
        yield f"bench {suffix[1:]}", partial(result, suffix)
