"""Simulated all-reduces with an error bound: bytes and times of the two hops at a compression ratio."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from mpicomp.allreduce.two_hops import BUFFERED_BYTES, HEAD, SEGMENT_BYTES, owned_by_places, segment_length
from mpicomp.bench.kernels import bounded_codes
from mpicomp.cli.root import root
from mpicomp.errors import InvalidArgument
from mpicomp.ops import cpu
from mpicomp.ops.error_bound import BLOCK
from mpicomp.simulate import Machine, Place, Wire, program_of, replay
from mpicomp.simulate.ghost_ops import KERNELS
from mpicomp.simulate.machine import dump
from mpicomp.simulate.models import named

N = 1 << 20


def program(ratio, size, per_node=1, n=N):
    return program_of(f"two_hops:ratio={ratio}", named(str(n)), Place(0, size, per_node))


def seconds(one, per_node=1, bandwidth=1e30, **kernels):
    network, memory = Wire(0.0, bandwidth), Wire(0.0, 1e30)
    return replay(one, Machine(network, memory, per_node, {"copy": 0.0, **kernels})).finish.max()


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [1, 5, 12.5])
def test_bytes_are_those_of_two_hops(size, ratio):
    one = program(ratio, size)
    length = segment_length(N // size, min(SEGMENT_BYTES, BUFFERED_BYTES // size) // 4, BLOCK)
    segments = -(-N // size // length)
    heads = 2 * (size - 1) * segments * HEAD
    dense = 2 * (size - 1) / size * 4 * N / ratio
    assert one.bytes_sent.tolist() == pytest.approx([dense + heads] * size, abs=2 * (size - 1) * segments)
    assert one.messages.tolist() == [2 * (size - 1) * segments] * size
    assert seconds(one, bandwidth=1.0) == pytest.approx(dense + heads, rel=1e-3)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_ring_sends_as_much(size):
    ring = program_of("ring:ratio=5", named(str(N)), Place(0, size, 1))
    hops = program(5, size)
    assert ring.bytes_sent.tolist() == pytest.approx(hops.bytes_sent.tolist(), rel=1e-3)
    assert ring.messages.tolist() == hops.messages.tolist()
    assert seconds(ring, bandwidth=1.0) == pytest.approx(seconds(hops, bandwidth=1.0), rel=0.05)
    assert seconds(ring, sum_bounded=1.0) == 2 * (size - 1) * N // size  # two streams at a time


def test_the_coder_encodes_adds_and_decodes_all_values():
    one = program(4, 4)
    assert seconds(one, encode_bounded=1.0) == N
    assert seconds(one, sum_bounded=1.0) == N
    assert seconds(one, decode_bounded=1.0) == N


def test_time_between_nodes_does_not_grow_with_their_ranks():
    alone = seconds(program(4, 4), bandwidth=1.0)
    for per_node in (2, 4):
        assert seconds(program(4, 4 * per_node, per_node), per_node, 1.0) == pytest.approx(alone, rel=0.1)


def test_pieces_of_nodes():
    counts, begins = owned_by_places(1000, [[0, 2], [1], [3, 4, 5]], BLOCK)
    assert [count > 0 for count in counts] == [True, True, False, True, False, False]
    assert sum(counts) == 1000
    assert [begin for begin, count in zip(begins, counts, strict=True) if count] == [0, 384, 768]


@pytest.mark.parametrize("ratio", ["0.5", "nan", "inf", "-3", "six", ""])
def test_ratios_that_are_none(ratio):
    with pytest.raises(InvalidArgument, match="must be a number from 1, got"):
        program_of(f"two_hops:ratio={ratio}", named("100"), Place(0, 2, 1))


def test_coder_rates_are_measured():
    names = [name for name, call, elements in bounded_codes(cpu, 10_000) if call() is None or elements]
    assert names == ["encode_bounded", "sum_bounded", "decode_bounded"]
    assert set(names) <= set(KERNELS)


def test_command(tmp_path):
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(dump(Machine(Wire(1e-5, 1e8), Wire(1e-6, 1e10), 1, {"copy": 1e-10}))))
    words = ["simulate", "-m", str(file), "--model", str(N), "-a", "ring", "--ranks", "4", "--json"]
    done = CliRunner().invoke(root, [*words, "--ratio", "2,8,ring:8"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["rows"]
    assert [row["what"] for row in rows] == ["ring", "two_hops:ratio=2", "two_hops:ratio=8", "ring:ratio=8"]
    dense, *coded = (row["exchange"] for row in rows)
    assert np.array(coded) * [2, 8, 8] == pytest.approx([dense] * 3, rel=0.1)
    refused = CliRunner().invoke(root, [*words, "--ratio", "2,many"])
    assert refused.exit_code
    assert "must be a number from 1, got 'many'" in str(refused.exception) + refused.output
