"""The decoders of what other ranks send: index forms, lists of pairs, selections, codecs, pieces, texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from one_rank import step_of

from mpicomp.comm.safety.agreement import Agreement
from mpicomp.errors import Disagreement
from mpicomp.reducer.layout import Bucket
from mpicomp.schemes.codecs import CODECS
from mpicomp.schemes.exchanges import gather, hops
from mpicomp.schemes.interfaces import StepContext
from mpicomp.schemes.options import resolve
from mpicomp.schemes.values import Compensated, Place
from mpicomp.schemes.wire import index_lists, message_format, validation
from mpicomp.schemes.workers import Workers

BYTE = np.dtype(np.uint8)
Read = Callable[[bytes], None]
FORMS = {
    "plain": "topk-global:density=0.2,indices=plain,switch=never",
    "gaps": "topk-global:density=0.2,indices=gaps,switch=never",
    "bitmap": "topk-global:density=0.2,indices=bitmap,switch=never",
    "own": "scalecom:chunk=9,exchange=gather,switch=never",
    "none": "qsgd:switch=never,bucket=40",
    "threshold": "strom:lam=0.7,switch=never",
    "levels": "topk:density=0.1,codec=levels,bucket=8,switch=never",
}  # fmt: skip


def step_on(text: str, rng: np.random.Generator, workers: int = 1) -> tuple[StepContext, Any, list[Compensated]]:
    """A step of a scheme on arrays of random shapes, its exchange, and the workers' gradients."""
    dtype = rng.choice(["float32", "float64"])
    shapes = [tuple(rng.integers(1, 14, int(rng.integers(0, 3)))) for _ in range(int(rng.integers(1, 5)))]
    grads = [rng.standard_normal((workers, *shape) if workers > 1 else shape).astype(dtype) for shape in shapes]
    grads = [np.asarray(g, dtype) for g in grads]
    bucket = Bucket(grads, workers)
    ctx, parts = step_of(text, bucket, workers)
    return ctx, parts.exchange, [Compensated(None, g) for g in bucket.flatten(grads)]


def gathered(text: str, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A rank's message of an all-gather; added up by the exchange itself."""
    workers = int(rng.integers(1, 4))
    step, exchange, u = step_on(text, rng, workers)
    sent = exchange.encode(u, exchange.choose(u, step), step)
    message = message_format.pack(sent.parts, step.ops)
    receiver = replace(step, comm=SimpleNamespace(rank=1, own_message=1), workers=Workers.equal(workers, 2))

    def read(data: bytes) -> None:
        flat = np.frombuffer(data, BYTE)
        mean = gather._sum(flat, [flat.size, 0], sent, receiver)
        assert mean.indices is None or (np.diff(mean.indices) > 0).all()
        assert mean.dense(step.ops).shape == (step.n,)

    return message.tobytes(), read


def pairs(filled: bool, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A list of gTop-k (filled up) or Ok-Topk, merged with another."""
    step, exchange, (u,) = step_on("gtopk:density=0.3", rng)
    own = exchange.choose([u], step).own[0]
    padded = sum(step.selector.counts(step)) + int(rng.integers(0, 5)) if filled else None
    message = index_lists.write(own, step, padded)

    def read(data: bytes) -> None:
        total = index_lists.add([own, index_lists.read(np.frombuffer(data, BYTE), step, check=False)], step, filled)
        assert (np.diff(total.indices) > 0).all()
        assert total.indices.size == total.values.size <= step.n
        # As the last message, which is added to nothing.
        theirs = index_lists.read(np.frombuffer(data, BYTE), step, filled)
        assert np.isin(theirs.indices, total.indices).all()

    return message.tobytes(), read


def selection(text: str, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A broadcast of ScaleCom's leader: as many bytes as expected, with arbitrary content."""
    step, _, (u,) = step_on(text, rng)
    wire = step.selector.select(u, step)

    def read(data: bytes) -> None:
        padded = (data + bytes(wire.nbytes))[: wire.nbytes]  # a broadcast has the receiver's length
        indices = validation.ascending(step.selector.expand(np.frombuffer(padded, wire.dtype), step), step)
        assert u.at(indices, step.ops).size == indices.size <= step.n

    return wire.tobytes(), read


def codes(text: str, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A codec's message, of a dense piece or of a list."""
    name, *given = text.split(",")
    part = CODECS[name](**resolve(CODECS[name].options, dict(one.split("=") for one in given), name))
    step, _, (u,) = step_on("threshold:lam=0.5", rng)
    start = int(rng.integers(0, step.n))
    chosen = np.flatnonzero(rng.random(step.n) < 0.4).astype(np.int32)
    place = Place(0, chosen) if rng.random() < 0.5 else Place(0, None, start, step.n)
    values = u.gradient[chosen] if place.indices is not None else u.gradient[start:].copy()
    if part.shares_scale:
        part.share(part.peak([values], step), step)
    message = part.encode(values, place, step)

    def read(data: bytes) -> None:
        decoded = part.decode(np.frombuffer(data, BYTE).copy(), place, step)
        assert decoded.shape == (place.size,) and decoded.dtype == step.dtype

    return message.view(BYTE).tobytes(), read


def piece(rng: np.random.Generator) -> tuple[bytes, Read]:
    """1-bit SGD's message to the owner of a piece: lengths, then codes."""
    workers = int(rng.integers(1, 4))
    step, exchange, u = step_on("onebit:column=16", rng, workers)
    sent = exchange.encode(u, exchange.choose(u, step), step)
    (message,) = hops.pack([[sent.encoder.codes(worker, 0, 0) for worker in range(workers)]], step.ops)

    def read(data: bytes) -> None:
        for one in hops.unpack({0: (np.frombuffer(data, BYTE), workers)}, step.ops)[0]:
            assert step.codec.decode(one, Place(0, None, 0, step.n), step).shape == (step.n,)

    return message.tobytes(), read


def verdict(rng: np.random.Generator) -> tuple[bytes, Read]:
    """A rank's message if ranks disagree: always an error that names the rank, whatever the message."""
    said = {"signature": f"step {rng.integers(100)} of topk", "error": "ValueError", "text": "no"}
    text = json.dumps(said if rng.random() < 0.5 else {"signature": said["signature"]}).encode()

    def read(data: bytes) -> None:
        agreement = Agreement(0, lambda number, patient: (number, number + 1), lambda own: [own, data])
        try:
            agreement.check("another call")
        except Disagreement as error:
            assert "rank 1: " in str(error)
            if "unreadable" in str(error):
                raise
        except Exception as error:  # the other rank's error, in its class; a bug would not name the rank
            assert "rank 1: " in str(error), repr(error)

    return text, read


CODEC_OPTIONS = ("float", "float,values=float16", "float,values=bfloat16", "one-bit,column=7", "sign", "levels",
                 "levels,levels=1,bucket=9", "levels,levels=127,norm=max", "levels,levels=32767", "ternary",
                 "stochastic,unit=0.1", "natural", "scaled-integer", "scaled-integer,bits=8", "fixed,lam=0.5",
                 "induced,density=0.1")  # fmt: skip


def decoders() -> Iterator[tuple[str, Callable]]:
    """Names, and what makes a valid message with its reader."""
    for form, text in FORMS.items():
        yield f"gather {form}", partial(gathered, text)
    yield "pairs", partial(pairs, False)
    yield "pairs filled up", partial(pairs, True)
    yield "selection scalecom", partial(selection, "scalecom:chunk=9")
    yield "selection top-k", partial(selection, "topk-global:density=0.2,exchange=leader")
    for text in CODEC_OPTIONS:
        yield f"codec {text}", partial(codes, text)
    yield "piece", piece
    yield "agreement text", verdict
