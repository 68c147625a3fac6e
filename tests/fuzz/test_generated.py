"""Generated messages and journals (hypothesis): every written one is read back, any other is refused.

`fuzz.py` bends many more inputs at random; here a failure ends as the shortest input that shows it. Forms of indices
by themselves: tests/ops/test_lists.py; texts and data sets: test_generated_sets.py.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz import decoders
from generating import tries
from hypothesis import given
from hypothesis import strategies as st
from kept import written

from mpicomp.errors import CorruptFile, CorruptMessage, MpicompError
from mpicomp.ops import cpu
from mpicomp.schemes.selectors.all import All
from mpicomp.schemes.wire import message_format
from mpicomp.schemes.workers import Workers
from mpicomp.trace import journal, schema
from mpicomp.trace.metadata import run_metadata

EDGES = st.sampled_from([0, 1, -1, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63)])
NUMBERS = st.one_of(EDGES, st.integers(-(2**63), 2**63 - 1))


# ---- bytes of other ranks, and every file: a valid input under edits

@st.composite
def edits(draw):
    """Places and what is put there: a number over eight or four bytes, bytes instead of some, an end."""
    kinds = st.one_of(
        st.tuples(st.just("<q"), NUMBERS), st.tuples(st.just("<i"), NUMBERS), st.tuples(st.just("<B"), NUMBERS),
        st.tuples(st.integers(0, 9), st.binary(max_size=12)), st.tuples(st.just("cut"), st.none()))  # fmt: skip
    return draw(st.lists(st.tuples(st.integers(0, 2**12), kinds), min_size=1, max_size=3))


def edited(data, changes):
    data = bytearray(data)
    for at, (form, value) in changes:
        at %= len(data) + 1
        if form == "cut":
            del data[at:]
        elif isinstance(form, int):
            data[at : at + form] = value
        elif len(data) >= (width := struct.calcsize(form)):
            at = at % (len(data) // width) * width  # where numbers of this width stand
            data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


SLOW = ("file: trace", "file: bench", "file: matlab", "file: checkpoint", "file: cifar", "file: synthetic")


@pytest.mark.parametrize("name", [name for name in decoders(Path()) if not name.startswith(SLOW)])
def test_edited_inputs_are_read_or_refused(place, name):
    make = decoders(place)[name]

    @tries(12)
    @given(seed=st.integers(0, 2**16), changes=edits())
    def holds(seed, changes):
        data, read = make(np.random.default_rng(seed))
        with contextlib.suppress(MpicompError):  # refused in our words
            read(edited(data, changes))

    with np.errstate(all="ignore"):
        holds()


# ---- one rank's message of an all-gather

@st.composite
def parts(draw):
    """Messages of a rank's workers about a vector: its length, and a form, ascending indices and codes of each."""
    n = draw(st.integers(1, 300))
    workers = draw(st.lists(st.tuples(st.sampled_from(["plain", "gaps", "bitmap", "auto"]),
                                      st.sets(st.integers(0, n - 1), max_size=n), st.binary(max_size=20)),
                            min_size=1, max_size=3))  # fmt: skip
    return n, [(form, np.array(sorted(chosen), np.int32), np.frombuffer(codes, np.uint8))
               for form, chosen, codes in workers]  # fmt: skip


def packed(n, workers):
    step = SimpleNamespace(ops=cpu, n=n, selector=All(), workers=Workers.equal(len(workers), 1))
    made = [message_format.part(indices, None, codes, indices.size, form, step) for form, indices, codes in workers]
    return step, message_format.pack(made, cpu)


def unpacked(message, step):
    return list(message_format.unpack(message, message_format.heads({0: message}, step)[0], step))


@tries(100)
@given(parts())
def test_a_message_says_what_was_packed(given_parts):
    n, workers = given_parts
    step, message = packed(n, workers)
    read = unpacked(message, step)
    for (_, indices, codes), (their_indices, their_codes) in zip(workers, read, strict=True):
        np.testing.assert_array_equal(their_indices, indices)
        np.testing.assert_array_equal(their_codes, codes)


@tries(150)
@given(parts(), st.lists(st.tuples(st.integers(0, 11), NUMBERS), min_size=1, max_size=3))
def test_a_head_of_any_numbers_gives_indices_of_the_vector_or_an_error(given_parts, changes):
    n, workers = given_parts
    step, message = packed(n, workers)
    head = message[: 32 * len(workers)].view(np.int64)
    for at, number in changes:
        head[at % head.size] = number
    try:
        read = unpacked(message, step)
    except MpicompError:
        return
    for indices, _ in read:
        assert indices is None or cpu.ascends(indices, n)


@tries(60)
@given(parts(), st.integers(1, 40), st.booleans())
def test_a_message_of_another_length_is_refused(given_parts, more, shorter):
    n, workers = given_parts
    step, message = packed(n, workers)
    other = message[: max(0, message.size - more)] if shorter else np.append(message, np.zeros(more, np.uint8))
    with pytest.raises(CorruptMessage):
        unpacked(other, step)


# ---- journals

EVENTS = st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), *[st.integers(0, 2**64 - 1)] * 4,
                   st.integers(-1, 2**31 - 1), st.integers(0, 0), st.integers(0, 15))  # fmt: skip


@st.composite
def journals(draw):
    """Batches of events, each with the frame that holds them; a batch of None is another frame."""
    batches = draw(st.lists(st.one_of(st.none(), st.lists(EVENTS, max_size=4)), max_size=6))
    pack = struct.Struct(schema.EVENT_STRUCT).pack
    return [(batch, journal.json_frame(b"LABL", [[0, ["step", "ring", "topk", "float32", "sum"]]]) if batch is None
             else journal.frame(b"EVNT", b"".join(pack(*event) for event in batch))) for batch in batches]  # fmt: skip


def start_of_a_journal(place):
    path = journal.journal_path(place, 0)
    path.unlink(missing_ok=True)
    facts = {"rank": 0, "hostname": "a", "pid": 1, "cpus": "0", "clock": ""}
    journal.JournalWriter(path, {"run": run_metadata("generated", n_ranks=1), "rank": facts}).close()
    return path.read_bytes()


def kept(batches, start, end):
    """The events of the frames that lie before ``end``, and whether it is where one ends."""
    ends = list(itertools.accumulate((len(frame) for _, frame in batches), initial=start))
    whole = [batch for (batch, _), stop in zip(batches, ends[1:], strict=True) if batch and stop <= end]
    events = [event for batch in whole for event in batch]
    return sorted(events, key=lambda event: event[0]), end in ends


@tries(80)
@given(batches=journals(), data=st.data())
def test_a_journal_cut_anywhere_keeps_every_whole_frame(place, batches, data):
    """A kill in the middle of a write leaves such a journal."""
    head = start_of_a_journal(place)
    whole = head + b"".join(frame for _, frame in batches)
    end = data.draw(st.integers(len(head), len(whole)))
    read = journal.Journal(written(place, "rank00000.mpcj", whole[:end]))
    expected, clean = kept(batches, len(head), end)
    assert [tuple(event) for event in read.events().tolist()] == expected
    assert bool(read.damage) != clean


@tries(80)
@given(batches=journals(), data=st.data())
def test_a_journal_with_a_flipped_bit_keeps_what_was_before(place, batches, data):
    head = start_of_a_journal(place)
    whole = bytearray(head + b"".join(frame for _, frame in batches))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    path = written(place, "rank00000.mpcj", whole)
    if bit // 8 < len(head):
        with pytest.raises(CorruptFile):
            journal.Journal(path)
        return
    read = journal.Journal(path)
    assert read.damage
    assert [tuple(event) for event in read.events().tolist()] == kept(batches, len(head), bit // 8)[0]


def test_what_is_edited_is_another_input():
    """The edits do something: else the first test above would show nothing."""
    assert edited(b"abcdefgh" * 2, [(1, ("<q", -1))]) == b"abcdefgh" + b"\xff" * 8
    assert edited(b"abcd", [(1, (2, b"xyz")), (4, ("cut", None))]) == b"axyz"
