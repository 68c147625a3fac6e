"""Collectives with an error bound: ``Allreduce``, ``Reduce_scatter``, ``Allgather`` and ``Bcast`` of real fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from ..allreduce.two_hops import Pieces, all_reduce_pieces, alone, block_partition
from ..errors import BufferRefused, InvalidArgument
from ..ops.error_bound import BLOCK, MOST_TERMS
from ..types import Array
from .allreduce_call import AVG
from .bounded_call import RING, Bound, Call, apart, check_same, given_counts, real_vector, reduction_name
from .bounded_exchange import BoundedStats, Exchange
from .buffers import Buffer, Vector, check_pair
from .collectives import Verbs
from .engine import Engine
from .inherited import Inherited
from .interfaces import Recorder, Traffic
from .mpi_types import is_in_place
from .transport import MpiLink


class BoundedCollectives(Verbs, Inherited):
    """Collectives of ``Comm`` that take ``bound``; without it they are mpi4py's, and an ``algorithm`` is refused."""

    recorder: Recorder | None
    _bounded_stats: BoundedStats | None = None

    @property
    def bounded_stats(self) -> BoundedStats | None:
        """Record of the last collective with an error bound on this rank; None if there is none."""
        return self._bounded_stats

    def _bounded_allreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str, given: Bound) -> None:
        def prepare(engine: Engine) -> Call:
            target, source = real_vector(recvbuf, "recvbuf"), None
            if not is_in_place(sendbuf):
                source = real_vector(sendbuf, "sendbuf")
                check_pair(source, target)
            size = engine.link.size

            def exact(_: Array | None, __: Array) -> None:
                chosen = engine.reduction.schedule(target, "sum", engine.default)
                engine.reduction.run(source, target, "sum", chosen, 1 / size if name == AVG else 1.0)

            def pieces(source: Array | None, target: Array) -> Pieces:
                own = target if source is None else source
                return all_reduce_pieces(engine.link, own, target, BLOCK, by_nodes=given.algorithm != RING)

            name = reduction_name(op)
            return Call("Allreduce", name, target.array.size, source, target, str(given), pieces, exact)

        self._bounded("Allreduce", prepare, given)

    def Reduce_scatter(
        self, sendbuf: Buffer, recvbuf: Buffer, recvcounts: Sequence[int] | None = None, op: MPI.Op | str = MPI.SUM,
        bound: float | None = None, relative: bool = False, algorithm: str = "auto",
    ) -> None:  # fmt: skip
        """Reduce over all ranks; rank r gets ``recvcounts[r]`` elements. ``bound`` and the like as in `Allreduce`."""
        if bound is None and not relative and algorithm == "auto" and not isinstance(op, str):
            return super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
        given = Bound(bound, relative, algorithm)

        def prepare(engine: Engine) -> Call:
            counts = given_counts(recvcounts, engine.link.size)
            return scattered(self, engine.link, "Reduce_scatter", sendbuf, recvbuf, counts, op, given)

        return self._bounded("Reduce_scatter", prepare, given)

    def Reduce_scatter_block(
        self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str = MPI.SUM, bound: float | None = None,
        relative: bool = False, algorithm: str = "auto",
    ) -> None:  # fmt: skip
        """Reduce over all ranks; rank r gets block r of equal ones. ``bound`` and the like as in `Allreduce`."""
        if bound is None and not relative and algorithm == "auto" and not isinstance(op, str):
            return super().Reduce_scatter_block(sendbuf, recvbuf, op)
        given = Bound(bound, relative, algorithm)

        def prepare(engine: Engine) -> Call:
            size = engine.link.size
            whole = real_vector(recvbuf, "recvbuf").array.size
            count = whole // size if is_in_place(sendbuf) else whole
            return scattered(self, engine.link, "Reduce_scatter_block", sendbuf, recvbuf, [count] * size, op, given)

        return self._bounded("Reduce_scatter_block", prepare, given)

    def Allgather(
        self, sendbuf: Buffer, recvbuf: Buffer, bound: float | None = None, relative: bool = False,
        algorithm: str = "auto",
    ) -> None:  # fmt: skip
        """Gather equal blocks of all ranks on every rank; each element within ``bound`` of its own.

        Every rank gets the same bits, also of its own block. ``bound`` and the like as in `Allreduce`.
        """
        if bound is None and not relative and algorithm == "auto":
            return super().Allgather(sendbuf, recvbuf)
        given = Bound(bound, relative, algorithm)

        def prepare(engine: Engine) -> Call:
            size, rank = engine.link.size, engine.link.rank
            target = real_vector(recvbuf, "recvbuf")
            n = target.array.size // size
            own = Vector(target.array[rank * n : (rank + 1) * n], None, target.device)
            if not is_in_place(sendbuf):
                own = real_vector(sendbuf, "sendbuf")
                check_same(own, target)
            if n * size != target.array.size or own.array.size != n:
                raise BufferRefused(f"recvbuf must hold a block of sendbuf's length per rank, got {own.array.size} and "
                                    f"{target.array.size} elements on {size} ranks")
            begins = [n * owner for owner in range(size)]

            def pieces(source: Array | None, target: Array) -> Pieces:
                return Pieces([n] * size, alone(size), source, [0] * size, target, begins, True)

            def exact(source: Array | None, target: Array) -> None:
                MPI.Intracomm.Allgather(self, apart(source, target), target)

            return Call("Allgather", "", target.array.size, own, target, str(given), pieces, exact)

        return self._bounded("Allgather", prepare, given)

    def Bcast(
        self, buf: Buffer, root: int = 0, bound: float | None = None, relative: bool = False, algorithm: str = "auto"
    ) -> None:
        """Copy ``buf`` of rank ``root`` to all ranks; each element within ``bound`` of the root's.

        With a ``bound``, the root's own buffer is rounded to the values that the other ranks get. ``bound`` and the
        like as in `Allreduce`.
        """
        if bound is None and not relative and algorithm == "auto":
            return super().Bcast(buf, root)
        given = Bound(bound, relative, algorithm)

        def prepare(engine: Engine) -> Call:
            size, target = engine.link.size, real_vector(buf, "recvbuf")
            if not isinstance(root, (int, np.integer)) or not 0 <= root < size:
                raise InvalidArgument(f"root must be a rank, 0 to {size - 1}, got {root!r}")
            counts, begins = block_partition(target.array.size, size, BLOCK)

            def pieces(source: Array | None, target: Array) -> Pieces:
                return Pieces(counts, [[root]] * size, source, begins, target, begins, True)

            def exact(_: Array | None, target: Array) -> None:
                MPI.Intracomm.Bcast(self, target, root)

            source = target if engine.link.rank == root else None
            return Call("Bcast", "", target.array.size, source, target, f"root={root}, {given}", pieces, exact)

        return self._bounded("Bcast", prepare, given)

    # -- one call

    def _bounded(self, verb: str, prepare: Callable[[Engine], Call], given: Bound) -> None:
        engine, recorder = self._engine, self.recorder
        log = engine.log
        try:
            if log is not None:
                log.begin(verb)
            call = agreed(engine, verb, prepare, given)
            if log is not None:
                log.note((call.target.array.size, call.target.array.dtype), call.op, str(given))
            if recorder is None:
                self._bounded_stats = Exchange(engine, call, given).run()
                return
            before, start = engine.traffic, recorder.now()
            around, recorder.doing = recorder.doing, ("collective", -1, start)
            try:
                self._bounded_stats = stats = Exchange(engine, call, given).run()
            finally:
                recorder.doing = around
            record(recorder, call, given, stats, start, engine.traffic - before)
        finally:
            if log is not None:
                log.end()


def agreed(engine: Engine, verb: str, prepare: Callable[[Engine], Call], given: Bound) -> Call:
    """Return the call if it is valid and the same on all ranks; else raise one error on every rank."""
    checks = engine.checks
    compared = checks.next_call() or checks.is_new((verb, "with an error bound"))  # all but with MPICOMP_CHECK=0
    call: Call | None = None
    error: Exception | None = None
    try:
        given.check(verb)
        if engine.link.size > MOST_TERMS:
            raise InvalidArgument(f"an error bound needs at most {MOST_TERMS} ranks, got {engine.link.size}")
        call = prepare(engine)
        if call.target.device is not None:
            engine.reduction.stage(call.target.device)
    except Exception as caught:
        if not compared:
            raise
        error = caught
    if compared:
        text = call.signature() if call else "refused"
        checks.compare(f"{verb} call {engine.plain.calls}: {text}", error)
    assert call is not None, "otherwise the comparison has raised its error"
    return call


def scattered(comm: MPI.Intracomm, link: MpiLink, verb: str, sendbuf: Buffer, recvbuf: Buffer, counts: list[int],
              op: MPI.Op | str, given: Bound) -> Call:
    """Return a call of ``Reduce_scatter`` or ``Reduce_scatter_block`` whose rank r gets ``counts[r]`` elements."""
    name, whole, total = reduction_name(op), real_vector(recvbuf, "recvbuf"), sum(counts)
    own = counts[link.rank]
    source = whole
    if not is_in_place(sendbuf):
        source = real_vector(sendbuf, "sendbuf")
        check_same(source, whole)
    if source.array.size != total or whole.array.size < own:
        raise BufferRefused(f"expected {total} elements to reduce and room for {own}, got {source.array.size} and "
                            f"{whole.array.size}")
    target = Vector(whole.array[:own], None, whole.device)
    begins = [0, *accumulate(counts[:-1])]

    def pieces(source: Array | None, target: Array) -> Pieces:
        everyone = [range(link.size)] * link.size
        if given.algorithm == RING:  # which encodes values late, when elements of the result may be there
            source = apart(source, target)
        return Pieces(counts, everyone, source, begins, target, [0] * link.size, False)

    def exact(source: Array | None, target: Array) -> None:
        MPI.Intracomm.Reduce_scatter(comm, apart(source, target), target, counts, MPI.SUM)
        if name == AVG:
            np.divide(target, link.size, out=target)

    return Call(verb, name, total, source, target, f"counts={counts}, {given}", pieces, exact)


def record(recorder: Recorder, call: Call, given: Bound, stats: BoundedStats, start: int, used: Traffic) -> None:
    """Record a call, and as metrics its compression ratio and largest possible error."""
    array, algorithm = call.target.array, ", ".join(filter(None, (stats.algorithm, stats.cause)))
    recorder.event(
        "collective", start, algo=algorithm, scheme=given.label, op=call.op, dtype=call.target.name,
        nelem=array.size, nbytes_dense=array.nbytes, nbytes_sent=used.bytes_sent, nbytes_recv=used.bytes_received,
    )  # fmt: skip
    recorder.metric(f"ratio ({given.label})", -1, stats.ratio)
    recorder.metric(f"largest error ({given.label})", -1, stats.largest_error)
