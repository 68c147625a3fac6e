"""The journal: the append-only file that one rank writes while it runs, from which a kill loses nothing written.

A magic number, then frames: tag, length, CRC-32 over tag, length and payload. However the process ends, the frames
before the last one are whole; the CRC reveals a torn or damaged frame, and reading stops there.

=====  ===============================================================================
HEAD   JSON: metadata of run and rank, record types (first frame, exactly once)
LABL   JSON: new labels, ``[[code, [kind, algo, scheme, dtype, op]], ...]``, before their first use
NAME   JSON: new metric names, ``[[code, name], ...]``
EVNT   event records (``schema.EVENT``)
METR   metric records (``schema.METRIC``)
CLCK   JSON: one comparison with the reference rank's clock
OPEN   JSON: the event that the rank has been in for longer than a second (``schema.OPEN``)
DONE   JSON: why the rank stopped recording, and how many events it dropped (last frame)
=====  ===============================================================================
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import CorruptFile, RefusedOverwrite
from . import journal_json, schema
from .clock import Comparison
from .journal_json import Ending, Head, OpenEvent

MAGIC = b"MPCJRNL\x01"  # the last byte is the format's version
SUFFIX = ".mpcj"
_FRAME = struct.Struct("<4sII")
_MOST_RANKS = 1 << 24
_MAX_PAYLOAD = 1 << 28  # no honest frame is larger: a length beyond it is damage, not a reason to allocate


def journal_path(spool: str | Path, rank: int) -> Path:
    return Path(spool) / f"rank{rank:05d}{SUFFIX}"


def frame(tag: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(_FRAME.pack(tag, len(payload), 0)[:8]))
    return _FRAME.pack(tag, len(payload), crc) + payload


def json_frame(tag: bytes, value: object) -> bytes:
    return frame(tag, json.dumps(value, separators=(",", ":")).encode())


class JournalWriter:
    """Creates a journal and appends frames to it, each batch with one write."""

    def __init__(self, path: str | Path, head: Mapping[str, object]) -> None:
        self.path = Path(path)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            raise RefusedOverwrite(
                f"{path} is the journal of another run: rescue it with `mpicomp trace recover {self.path.parent}"
                " -o FILE`, or give force to discard it"
            ) from error
        self.size = 0  # bytes of whole frames
        try:
            self.append(MAGIC + json_frame(b"HEAD", {**head, "records": _record_types()}))
        except OSError:
            self.discard()
            raise

    def append(self, frames: bytes) -> None:
        """Write whole frames; on failure cut the file back to the last whole frame and raise."""
        try:
            written = 0
            while written < len(frames):
                written += os.write(self._file, memoryview(frames)[written:])
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(frames)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _record_types() -> dict[str, object]:
    return {"EVNT": schema.EVENT.descr, "METR": schema.METRIC.descr}


class Journal:
    """A journal read back: its metadata at once, its records on request.

    ``damage`` is empty, or names the place of the first damaged frame; everything before it is used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.labels: dict[int, tuple[str, ...]] = {}
        self.names: dict[int, str] = {}
        self.clock: list[Comparison] = []
        self.open: OpenEvent | None = None
        self.done: Ending | None = None
        self.damage = ""
        self.n_events = 0
        self.n_metrics = 0
        with self._open() as file:
            try:
                self._scan(file)
            except CorruptFile:
                raise
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
                raise CorruptFile(f"{path}: whole frames, but not of this program: {error!r}") from error

    @property
    def rank(self) -> int:
        return self.head["rank"]["rank"]

    @property
    def run_id(self) -> str:
        return str(self.head["run"]["run_id"])

    @property
    def status(self) -> str:
        if self.damage:
            return "torn"
        return self.done["reason"] if self.done else "killed"

    @property
    def n_dropped(self) -> int:
        return self.done["n_dropped"] if self.done else 0

    def events(self) -> np.ndarray:
        """All event records, sorted by begin; of those that begin together, the longest comes first."""
        records = self._records(b"EVNT", schema.EVENT, self.n_events)
        return records[np.lexsort((-records["t_end"], records["t_start"]))]

    def metrics(self) -> np.ndarray:
        return self._records(b"METR", schema.METRIC, self.n_metrics)

    def _scan(self, file: BinaryIO) -> None:
        frames = self._frames(file)
        self.head = self._read_head(frames)
        self._end = file.tell()
        for tag, payload in frames:
            self._note(tag, payload)
            self._end = file.tell()

    def _records(self, wanted: bytes, dtype: np.dtype, count: int) -> np.ndarray:
        records = np.empty(count, dtype)
        filled = 0
        with self._open() as file:
            for tag, payload in self._frames(file):
                if tag == wanted:
                    batch = np.frombuffer(payload, dtype)
                    records[filled : filled + len(batch)] = batch
                    filled += len(batch)
                if file.tell() >= self._end:
                    break
        return records

    def _open(self) -> BinaryIO:
        file = self.path.open("rb")
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            file.close()
            what = "a journal of another version" if magic[:-1] == MAGIC[:-1] else "not a journal, or cut off at once"
            raise CorruptFile(f"{self.path}: {what} (it begins with {magic!r})")
        return file

    def _frames(self, file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
        while header := file.read(_FRAME.size):
            position = file.tell() - len(header)
            payload = self._payload(file, header)
            if payload is None:
                self.damage = f"damaged at byte {position} of {os.fstat(file.fileno()).st_size}"
                return
            yield header[:4], payload

    @staticmethod
    def _payload(file: BinaryIO, header: bytes) -> bytes | None:
        if len(header) < _FRAME.size:
            return None
        _, length, crc = _FRAME.unpack(header)
        if length > min(_MAX_PAYLOAD, os.fstat(file.fileno()).st_size - file.tell()):
            return None
        payload = file.read(length)
        return payload if zlib.crc32(payload, zlib.crc32(header[:8])) == crc else None

    def _read_head(self, frames: Iterator[tuple[bytes, bytes]]) -> Head:
        tag, payload = next(frames, (b"", b""))
        if tag != b"HEAD":
            raise CorruptFile(f"{self.path}: the journal's head is missing or {self.damage or 'out of place'}")
        head: Head = json.loads(payload)
        if head["records"] != json.loads(json.dumps(_record_types())):
            raise CorruptFile(f"{self.path}: written by another version of mpicomp ({head['run'].get('creator')})")
        journal_json.head(head)
        if not 1 <= head["run"]["n_ranks"] <= _MOST_RANKS:
            raise CorruptFile(f"{self.path}: a run of {head['run']['n_ranks']} ranks cannot be")
        return head

    def _note(self, tag: bytes, payload: bytes) -> None:
        if tag == b"EVNT":
            self.n_events += len(np.frombuffer(payload, schema.EVENT))
        elif tag == b"METR":
            self.n_metrics += len(np.frombuffer(payload, schema.METRIC))
        elif tag == b"LABL":
            self.labels.update(journal_json.labels(json.loads(payload)))
        elif tag == b"NAME":
            self.names.update(journal_json.names(json.loads(payload)))
        elif tag == b"CLCK":
            self.clock.extend(journal_json.comparisons(json.loads(payload)))
        elif tag == b"OPEN":
            self.open = journal_json.open_event(json.loads(payload)[-1])
        elif tag == b"DONE":
            self.done = journal_json.ending(json.loads(payload))
        elif tag == b"HEAD":
            raise ValueError("a second head")
