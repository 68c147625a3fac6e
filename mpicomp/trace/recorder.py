"""The recorder of a rank's events. An event costs one packed struct and one list append; no file, lock or MPI call.

A thread of the record buffer writes batches to the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING

from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from . import clock, journal, metadata, schema
from .files import check_trace
from .messages import broadcast_json
from .record_buffer import BATCH, Doing, RecordBuffer, log

if TYPE_CHECKING:
    from ..comm.comm import Comm

_pack_event = struct.Struct(schema.EVENT_STRUCT).pack
_pack_metric = struct.Struct(schema.METRIC_STRUCT).pack


class Recorder:
    """Records the events of one rank in a journal and, on ``close``, merges the journals of all ranks into HDF5.

    Parameters
    ----------
    comm : Comm
        Ranks that record together. Creating and closing a recorder are collective; everything between is local.
    path : str or Path
        The HDF5 file to write. It must not exist, unless ``force`` is given.
    force : bool
        Replace ``path``, and discard journals that an earlier run left in the spool folder.
    spool : str or Path, optional
        Folder of the journals, best on a local disk; by default ``PATH.spool``. After a kill,
        ``mpicomp trace recover SPOOL -o FILE`` makes the file from them.
    title : str
        Free text, kept in the file.
    max_events : int, optional
        Most events of one file (default 200 million); a larger run becomes a folder ``PATH.d`` of files.
    configuration : dict, optional
        Settings of the run by name, kept in the file; the commands give all their options, defaults included.

    Raises
    ------
    RefusedOverwrite, OSError
        The same on every rank, naming the first rank that could not record.
    """

    enabled = True
    doing: Doing | None = None  # the event that this rank is in, for `trace hang`
    now = staticmethod(monotonic_ns)

    def __init__(self, comm: Comm, path: str | Path, *, force: bool = False, spool: str | Path | None = None,
                 title: str = "", max_events: int | None = None, configuration: Mapping[str, object] | None = None,
                 ) -> None:  # fmt: skip
        self.path = Path(path).absolute()
        self.spool = Path(spool).absolute() if spool else self.path.with_name(self.path.name + ".spool")
        self._comm = comm
        self._force = force
        self._max_events = max_events
        self._closed = self._made_spool = False
        self._step = -1
        try:
            run_collectively(comm, lambda: _on_files(lambda: self._claim(make_parents=spool is not None), self.spool))
            self._run = broadcast_json(comm, metadata.run_metadata(title, comm.size, configuration))
            comparison = clock.measure(comm)
            self._buffer = RecordBuffer(self._create_journal(), lambda: self.doing)
        except Exception:
            self._remove_spool()
            raise
        self._buffer.note_clock(comparison)
        self._rows, self._labels = self._buffer.rows, self._buffer.labels

    def event(
        self, kind: str, t_start: int, t_end: int | None = None, *, step: int = -1, algo: str = "", scheme: str = "",
        dtype: str = "", op: str = "", nbytes_dense: int = 0, nbytes_sent: int = 0, nbytes_recv: int = 0,
        nelem: int = 0, flags: int = 0,
    ) -> None:  # fmt: skip
        """Record that ``kind`` lasted from ``t_start`` to ``t_end`` (ns from ``now()``; by default until now).

        Parameters
        ----------
        step : int
            Training step; by default that of the enclosing ``step()`` block.
        algo, scheme, dtype, op : str
            All-reduce algorithm, compression scheme, element type and reduction.
        nbytes_dense, nbytes_sent, nbytes_recv, nelem : int
            Bytes and elements of the dense buffer; bytes this rank handed to and took from MPI.
        flags : int
            Bits of ``schema``: 1 warm-up, 2 in place, 4 error, 8 truncated.
        """
        if t_end is None:
            t_end = monotonic_ns()
        label = (kind, algo, scheme, dtype, op)
        code = self._labels.get(label)
        if code is None:
            code = self._buffer.new_label(label)
        if step < 0:
            step = self._step
        rows = self._rows
        try:
            rows.append(_pack_event(t_start, t_end, nbytes_dense, nbytes_sent, nbytes_recv, nelem, step, code, flags))
        except struct.error as error:
            raise InvalidArgument(f"event {kind!r}: times, sizes and step must be integers in range: {error}") from None
        if not len(rows) & (BATCH - 1):
            self._buffer.batch_full()

    def spans(self, step: int, spans: list[tuple[str, int, int]]) -> None:
        """Record the phases of a step, ``(kind, t_start, t_end)`` each, at a third of the cost of ``event``."""
        labels, append = self._labels, self._rows.append
        for kind, t_start, t_end in spans:
            label = (kind, "", "", "", "")
            code = labels.get(label)
            if code is None:
                code = self._buffer.new_label(label)
            append(_pack_event(t_start, t_end, 0, 0, 0, 0, step, code, 0))
        if len(self._rows) >= BATCH:
            self._buffer.batch_full()

    def region(self, kind: str) -> AbstractContextManager[object]:
        """Record the ``with`` block as one event."""
        return _Region(self, kind)

    def step(self, step: int) -> AbstractContextManager[object]:
        """Record the ``with`` block as training step ``step``; events inside carry its number.

        Blocks of one number are one step, from the begin of the first to the end of the last.
        """
        return _Step(self, step)

    def step_number(self, own: int) -> int:
        """The number of the enclosing ``step()`` block; outside of one a caller's ``own`` count."""
        return own if self._step < 0 else self._step

    def metric(self, name: str, step: int, value: float) -> None:
        """Record a value: loss, residual norm, learning rate ...; step -1 is that of the enclosing ``step()`` block."""
        if step < 0:
            step = self._step
        code = self._buffer.names.get(name)
        if code is None:
            code = self._buffer.new_name(name)
        try:
            self._buffer.metrics.append(_pack_metric(monotonic_ns(), value, step, code))
        except struct.error as error:
            raise InvalidArgument(f"metric {name!r}: value must be one number, got {type(value).__name__}, and step an "
                                  f"integer in range: {error}") from None

    def flush(self) -> None:
        """Hand everything recorded so far to the operating system; it then survives a kill of this process."""
        self._buffer.flush()

    def close(self) -> None:
        """Merge the journals of all ranks into the HDF5 file. Collective; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        from . import gather_journals  # imports h5py, which recording does not need

        self._buffer.note_clock(clock.measure(self._comm))
        self._buffer.stop("closed")
        gather_journals.merge_over_ranks(self._comm, self._buffer, str(self._run["run_id"]), self.path, self._force,
                                         self._max_events)
        if self._comm.size > 1:
            self._comm.Barrier()  # every rank has removed its journal from the folder
        self._remove_spool()

    def close_after_loss(self, comm: Comm) -> None:
        """Close on the surviving ranks, ``comm``; the file reports the others as killed."""
        self._closed = True
        from . import gather_journals

        self._buffer.stop("closed")
        gather_journals.recover_over_ranks(comm, self.spool, self.path, self._force)

    def abandon(self, reason: str = "failed") -> None:
        """Stop recording and leave the journal for ``mpicomp trace recover``. Not collective."""
        if self._closed:
            return
        self._closed = True
        self._buffer.stop(reason)
        log.warning("trace not finished, journals kept: mpicomp trace recover %s -o %s", self.spool, self.path)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:  # fmt: skip
        if kind is None:
            self.close()
        else:
            # Other ranks may never enter a collective merge. 130 and 143 are SIGINT and SIGTERM: see cli/guard.py.
            self.abandon("interrupted" if kind is KeyboardInterrupt or getattr(error, "code", 0) in (130, 143) else
                         "failed")  # fmt: skip

    def _claim(self, make_parents: bool) -> None:
        """Fail now rather than after hours of training."""
        if self._comm.rank == 0:
            check_trace(self.path, self._force)
        if not self.spool.is_dir():
            self.spool.mkdir(parents=make_parents, exist_ok=True)
            self._made_spool = True
        if self._force and self._comm.rank == 0:
            for stale in self.spool.glob("*" + journal.SUFFIX):
                stale.unlink()

    def _create_journal(self) -> journal.JournalWriter:
        rank = self._comm.rank
        path = journal.journal_path(self.spool, rank)
        created = []

        def create() -> None:
            self.spool.mkdir(exist_ok=True)  # a rank that was refused may just have removed it
            if self._force:  # a disk that rank 0 does not see still has the old journal
                path.unlink(missing_ok=True)
            created.append(journal.JournalWriter(path, {"run": self._run, "rank": metadata.rank_metadata(rank)}))

        try:
            run_collectively(self._comm, lambda: _on_files(create, self.spool))
        except Exception:
            for writer in created:
                writer.discard()
            raise
        return created[0]

    def _remove_spool(self) -> None:
        if self._made_spool:
            with suppress(OSError):  # it holds files of others
                self.spool.rmdir()


class NullRecorder:
    """A recorder that records nothing, for callers that take one always."""

    enabled = False
    doing = None
    now = staticmethod(monotonic_ns)

    def event(
        self, kind: str, t_start: int, t_end: int | None = None, *, step: int = -1, algo: str = "", scheme: str = "",
        dtype: str = "", op: str = "", nbytes_dense: int = 0, nbytes_sent: int = 0, nbytes_recv: int = 0,
        nelem: int = 0, flags: int = 0,
    ) -> None:  # fmt: skip
        pass

    def spans(self, step: int, spans: list[tuple[str, int, int]]) -> None:
        pass

    def region(self, kind: str) -> AbstractContextManager[object]:
        return nullcontext(self)

    def step(self, step: int) -> AbstractContextManager[object]:
        return nullcontext(self)

    def step_number(self, own: int) -> int:
        return own

    def metric(self, name: str, step: int, value: float) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def close_after_loss(self, comm: Comm) -> None:
        pass

    def abandon(self, reason: str = "failed") -> None:
        pass

    def __enter__(self) -> NullRecorder:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _on_files(action: Callable[[], None], spool: Path) -> None:
    """Run ``action`` on files in ``spool``; an error of the file system names the file and says what to do."""
    try:
        action()
    except OSError as error:
        if error.errno is None:  # raised by this package: the text is complete
            raise
        raise type(error)(f"cannot record a trace in {error.filename or spool}: {error.strerror}; "
                          "give another path or spool") from error


class _Region:
    __slots__ = ("around", "kind", "recorder", "t_start")

    def __init__(self, recorder: Recorder, kind: str) -> None:
        self.recorder, self.kind = recorder, kind

    def __enter__(self) -> Recorder:
        self.t_start = monotonic_ns()
        recorder = self.recorder
        self.around, recorder.doing = recorder.doing, (self.kind, recorder._step, self.t_start)
        return recorder

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.recorder.doing = self.around
        self.recorder.event(self.kind, self.t_start, flags=schema.ERROR if kind else 0)


class _Step(_Region):
    __slots__ = ("outer", "step")

    def __init__(self, recorder: Recorder, step: int) -> None:
        super().__init__(recorder, "step")
        self.step = step

    def __enter__(self) -> Recorder:
        self.outer, self.recorder._step = self.recorder._step, self.step
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            super().__exit__(kind)
        finally:
            self.recorder._step = self.outer
