"""The bytes that docs/reference/wire-formats.md shows are those that are sent, and its reader reads what is sent."""

import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from one_rank import step_of

from mpicomp.comm.safety.agreement import Agreement
from mpicomp.errors import Disagreement
from mpicomp.reducer.layout import Bucket
from mpicomp.schemes import averaging
from mpicomp.schemes.exchanges import hops
from mpicomp.schemes.values import Compensated
from mpicomp.schemes.wire import index_lists, message_format
from mpicomp.trace import journal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "wire-formats.md").read_text()
VECTOR = np.array([0, 3, -1, 0.5, 0, -2, 0, 0, 0.25, 0, 0, 4], np.float32)  # that of the page
LONG = np.zeros(512, np.float32)
LONG[[1, 511]] = 3, -2
ROW = re.compile(r"^((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$")


def shown():
    """The bytes of the page's ``text`` blocks, by what their first line says."""
    found = {}
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        name, *rows = block.splitlines()
        assert name not in found
        found[name] = b"".join(bytes.fromhex(ROW.match(row)[1]) for row in rows)
    return found


def step_on(text, gradient):
    """The first step of a scheme on one vector of one worker, and its exchange."""
    ctx, parts = step_of(text, Bucket([gradient], 1))
    return replace(ctx, spans=[(0, gradient.size)]), parts.exchange


def gathered(text, gradient=VECTOR):
    """The message of a scheme that gathers, and its step."""
    step, exchange = step_on(text, gradient)
    u = [Compensated(None, gradient)]
    message = exchange.encode(u, exchange.choose(u, step), step)
    return message_format.pack(message.parts, step.ops).tobytes(), step


def coded(text, gradient=VECTOR):
    """A codec's bytes of a dense vector; tests/schemes/test_codecs.py decodes them."""
    step, _ = step_on(text, gradient)
    (codes,) = averaging.encode_all([gradient.copy()], [step.place(0, None)], step)
    return codes.tobytes()


def pairs():
    step, _ = step_on("gtopk:k=3", VECTOR)
    chosen = np.array([1, 5], np.int32)
    return index_lists.write(index_lists.Pairs(chosen, VECTOR[chosen]), step, 3).tobytes()


def to_an_owner():
    step, _ = step_on("onebit", VECTOR)
    codes = averaging.encode_all([VECTOR[:6]], [step.place(0, None)._replace(stop=6)], step)
    return hops.pack([codes], step.ops)[0].tobytes()


def selection():
    step, _ = step_on("scalecom:chunk=4", VECTOR)
    return step.selector.select(Compensated(None, VECTOR), step).tobytes()


def agreed(signature):
    """A rank's messages in an agreement if another rank does something else: its number, then its text."""
    said = []

    def extremes(number, patient):
        said.append(np.array([number, number], np.int64).tobytes())
        return number, number + 1

    def gather(text):
        said.append(text)
        return [text, json.dumps({"signature": "another"}).encode()]

    with pytest.raises(Disagreement):
        Agreement(0, extremes, gather).check(signature)
    return said


EVENT = np.array([(1000, 3500, 4096, 64, 64, 1024, 7, 1, 2)], journal.schema.EVENT)
LABEL = [[1, ["exchange", "ring", "topk", "float32", "sum"]]]
SENT = {
    "gather, gaps": lambda: gathered("topk-global:k=3")[0],
    "gather, bitmap": lambda: gathered("topk-global:k=3,indices=bitmap")[0],
    "gather, plain": lambda: gathered("topk-global:k=3,indices=plain")[0],
    "gather, own": lambda: gathered("scalecom:chunk=256,exchange=gather", LONG)[0],
    "gather, none": lambda: gathered("natural:exchange=gather")[0],
    "float, values=float16": lambda: coded("half"),
    "float, values=bfloat16": lambda: coded("dense:values=bfloat16"),
    "scaled-integer, bits=8": lambda: coded("scaled-integer:bits=8"),
    "sign": lambda: coded("signsgd"),
    "one-bit": lambda: coded("onebit"),
    "fixed, lam=2": lambda: coded("strom:lam=2"),
    "levels, levels=1, bucket=6": lambda: coded("qsgd:levels=1,bucket=6"),
    "ternary, sigmas=0": lambda: coded("terngrad:sigmas=0"),
    "stochastic, unit=0.25": lambda: coded("stochastic-rounding:unit=0.25"),
    "natural": lambda: coded("natural"),
    "blocks, format=int8": lambda: coded("int8"),
    "blocks, format=int4": lambda: coded("int4"),
    "blocks, format=fp8": lambda: coded("fp8"),
    "induced, k=2, levels=1": lambda: coded("induced:k=2,levels=1"),
    "leader's selection, chunk=4": selection,
    "list of pairs": pairs,
    "to the owner of a piece": to_an_owner,
    "agreement": lambda: agreed("broadcast of 9 elements int64 from rank 0")[0],
    "journal": lambda: (journal.MAGIC + journal.json_frame(b"LABL", LABEL) + journal.frame(b"EVNT", EVENT.tobytes())),
}


@pytest.mark.parametrize("name", SENT)
def test_what_the_page_shows_is_what_is_sent(name):
    assert shown()[name] == SENT[name]()


def test_the_page_shows_nothing_else():
    assert set(shown()) == set(SENT)


def test_the_text_of_a_rank_that_disagrees():
    number, text = agreed("broadcast of 9 elements int64 from rank 0")
    assert struct.unpack("=2q", number)[0] == zlib.crc32(json.loads(text)["signature"].encode())
    assert '`{"signature": ...}`' in PAGE


@pytest.mark.parametrize("form", ["gaps", "bitmap", "plain", "auto"])
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_the_reader_of_the_page_reads_what_is_sent(form, density):
    """Two workers' random lists, which the page's own lines take apart."""
    scope = {}
    exec(re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1], scope)
    rng, n = np.random.default_rng(), 500
    step, _ = step_on("topk-global", np.zeros(n, np.float32))
    lists = [np.flatnonzero(rng.random(n) < density).astype(np.int32) for _ in range(2)]
    values = [rng.standard_normal(one.size).astype(np.float32) for one in lists]
    parts = [message_format.part(None if one.size == n else one, None, code, one.size, form, step)
             for one, code in zip(lists, values, strict=True)]  # fmt: skip
    read = [*scope["read"](message_format.pack(parts, step.ops).tobytes(), 2, n)]
    for (indices, found), one, code in zip(read, lists, values, strict=True):
        assert np.array_equal(indices, one)
        assert np.array_equal(found, code)
