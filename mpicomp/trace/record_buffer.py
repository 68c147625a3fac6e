"""Buffer of records that a thread writes to the journal, without a lock on the recording side.

``list.append``, slicing and deleting a slice are each atomic in CPython. So the writer takes finished records
from the front of the list while any thread appends at its end, and the hot path needs no lock.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import TypeAlias
from weakref import WeakSet
from zlib import crc32

from . import journal
from .clock import Comparison
from .journal_json import OpenEvent

BATCH = 4096  # records per write; a power of two, so that one bit mask detects a full batch
_MAX_PENDING = 1 << 20  # records held while the disk stalls (about 100 MB); then the caller waits
_INTERVAL = 1.0  # longest time (s) until a record is written
_MAX_LABELS = 1 << 16  # a label's code is 16 bits wide
_LONGEST_NAME = 64
_OTHER = ("other", "", "", "", "")

Label: TypeAlias = tuple[str, str, str, str, str]  # the strings of an event, see schema.LABEL_FIELDS
Doing: TypeAlias = tuple[str, int, int]  # kind, step and begin of the event that the rank is in

log = logging.getLogger("mpicomp.trace")


_recording: WeakSet[RecordBuffer] = WeakSet()


def interrupted() -> None:
    """Close all journals as interrupted by a signal; any thread calls it, just before the process ends."""
    for buffer in [*_recording]:
        buffer.stop("interrupted")


class RecordBuffer:
    """Pending records of one rank, their vocabulary, and the thread that writes both to the journal."""

    def __init__(self, writer: journal.JournalWriter, doing: Callable[[], Doing | None] = lambda: None) -> None:
        self.rows: list[bytes] = []
        self.metrics: list[bytes] = []
        self.labels: dict[Label, int] = {}
        self.names: dict[str, int] = {}
        self.writer = writer
        self.truncated = False
        self.n_dropped = 0
        self._doing = doing
        self._news: list[tuple[bytes, object]] = []  # vocabulary and clock comparisons not yet in the journal
        self._pid = os.getpid()
        self._naming = threading.Lock()
        self._writing = threading.Lock()
        self._stopping = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._flush_loop, name="mpicomp-trace", daemon=True)
        self._thread.start()
        atexit.register(self.flush)
        _recording.add(self)

    def new_label(self, label: Label) -> int:
        """Code of a new label; beyond 65 535 labels the rest share one code."""
        with self._naming:
            if label in self.labels:
                return self.labels[label]
            code = min(len(self.labels), _MAX_LABELS - 1)
            if code < _MAX_LABELS - 1:
                self.labels[label] = code
            self._news.append((b"LABL", [code, _OTHER if code == _MAX_LABELS - 1 else [*map(clean, label)]]))
            return code

    def new_name(self, name: str) -> int:
        with self._naming:
            if name not in self.names:
                self._news.append((b"NAME", [len(self.names), clean(name)]))
                self.names[name] = len(self.names)
            return self.names[name]

    def note_clock(self, comparison: Comparison) -> None:
        with self._naming:
            self._news.append((b"CLCK", comparison))

    def batch_full(self) -> None:
        if len(self.rows) >= _MAX_PENDING:
            self.flush()
        else:
            self._wake.set()

    def flush(self) -> None:
        """Write everything pending."""
        if os.getpid() != self._pid:  # a forked child shares the file, but the records belong to the parent
            return
        with self._writing:
            # Records are taken first, vocabulary second: no code is written without its meaning.
            rows, metrics = _take(self.rows), _take(self.metrics)
            with self._naming:
                news, self._news = self._news, []
            self._write(news, rows, metrics)

    def stop(self, reason: str) -> None:
        """Write the pending records and the reason of the end, and close the journal; a second call does nothing."""
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
        _recording.discard(self)
        self._wake.set()
        self._thread.join()
        self.flush()
        atexit.unregister(self.flush)
        reason = "truncated" if self.truncated else reason
        try:
            self.writer.append(journal.json_frame(b"DONE", {"reason": reason, "n_dropped": self.n_dropped}))
        except OSError as error:
            self._give_up(error)
        self.writer.close()

    def _flush_loop(self) -> None:
        seen: Doing | None = None
        noted: Doing | None = None
        while not self._stopped:
            idle = not self._wake.wait(_INTERVAL)
            self._wake.clear()
            seen, before = self._doing(), seen
            if idle and seen is not None and seen is before and seen is not noted:
                self._note_open(*seen)
                noted = seen
            self.flush()

    def _note_open(self, kind: str, step: int, t_start: int) -> None:
        with self._naming:
            self._news.append((b"OPEN", OpenEvent(kind=clean(kind), step=step, t_start=t_start, t=monotonic_ns())))

    def _write(self, news: list[tuple[bytes, object]], rows: list[bytes], metrics: list[bytes]) -> None:
        frames = [journal.json_frame(tag, [entry]) for tag, entry in news]
        frames += [journal.frame(tag, b"".join(part)) for tag, part in ((b"EVNT", rows), (b"METR", metrics)) if part]
        try:
            if frames and not self.truncated:
                self.writer.append(b"".join(frames))
        except OSError as error:
            self._give_up(error)
        if self.truncated:
            self.n_dropped += len(rows)

    def _give_up(self, error: OSError) -> None:
        if not self.truncated:
            log.warning("tracing stops, training goes on: %s: %s", self.writer.path, error.strerror)
        self.truncated = True


def clean(name: object) -> str:
    """A name that every reader of HDF5 accepts: printable ASCII, at most 64 characters. Others end in a checksum."""
    given = str(name)
    text = given.encode("ascii", "replace").decode()
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if text == given and len(text) <= _LONGEST_NAME:
        return text
    end = f"~{crc32(given.encode('utf-8', 'backslashreplace')):08x}"
    return text[:_LONGEST_NAME - len(end)] + end


def _take(records: list[bytes]) -> list[bytes]:
    taken = records[:]
    del records[: len(taken)]
    return taken
