"""The table behind ``auto``: lookups, the file, the choice from measured times."""

import json
from dataclasses import replace

import pytest

from mpicomp.allreduce import ALGORITHMS
from mpicomp.allreduce.table import BY_NETWORK, WITHOUT_LIMIT, Row, Table, built_in, choices_of, dump, load
from mpicomp.errors import InvalidArgument

NAMES = list(ALGORITHMS)


def row(ranks_per_node, nodes, name="ring", device="cpu"):
    return Row(ranks_per_node, nodes, device, ((1000, "native"), (WITHOUT_LIMIT, name)))


def test_built_in_has_a_row_for_every_layout():
    for layout in ((2, 1), (8, 1), (128, 1), (1, 2), (1, 1000), (3, 7), (64, 512)):
        for device in ("cpu", "gpu"):
            found = built_in().row(*layout, device)
            assert found.pick(0) == found.pick(4096) == "native"
            assert found.pick(1 << 40) in [*NAMES, BY_NETWORK]


def test_one_rank_is_native():
    assert built_in().row(1, 1, "cpu").native_limit() == WITHOUT_LIMIT


def test_the_most_similar_row_of_a_kind_is_taken():
    table = Table((row(4, 1), row(16, 1), row(1, 4)))
    assert table.row(4, 1, "cpu").ranks_per_node == 4
    assert table.row(12, 1, "cpu").ranks_per_node == 16
    assert table.row(1, 64, "cpu").nodes == 4
    assert table.row(2, 2, "cpu") == built_in(2).row(2, 2, "cpu")  # several ranks on several nodes: nothing measured
    assert table.row(4, 1, "gpu") == built_in().row(4, 1, "gpu")


def test_pick_and_native_limit():
    one = Row(4, 1, "cpu", ((10, "native"), (20, "native"), (30, "ring"), (WITHOUT_LIMIT, "native")))
    assert [one.pick(n) for n in (0, 10, 20, 21, 30, 31)] == ["native"] * 3 + ["ring"] * 2 + ["native"]
    assert one.native_limit() == 20


def test_a_new_row_takes_the_place_of_its_layout():
    table = Table((row(4, 1), row(1, 4))).with_row(row(4, 1, "direct"))
    assert [one.pick(5000) for one in table.rows] == ["direct", "ring"]


def test_dump_and_load():
    table = Table((replace(row(4, 1), measured={"when": "now"}), row(1, 4, device="gpu")))
    again = load(json.dumps(dump(table)), "file", NAMES)
    assert again.rows == table.rows
    assert [one.measured for one in again.rows] == [{"when": "now"}, {}]
    assert again.source == "file"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"algorithm": "rnig"}, "unknown algorithm 'rnig': choose one of native"),
        ({"max_bytes": 5}, "max_bytes must ascend and end with null"),
        ({"max_bytes": "x"}, "no tuning table"),
    ],
)
def test_a_bad_row_is_refused(change, text):
    document = dump(Table((row(4, 1),)))
    document["rows"][0]["choices"][-1] |= change
    with pytest.raises(InvalidArgument, match=text):
        load(json.dumps(document), "file", NAMES)


def test_choices_from_times():
    times = {
        1: {"native": 1.0, "ring": 3.0},
        4: {"native": 1.0, "ring": 0.99},  # within the margin
        16: {"native": 2.0, "ring": 1.0},
        64: {"native": 9.0, "ring": 4.0, "direct": 3.0},
    }
    assert choices_of(times, 0.05) == ((8, "native"), (32, "ring"), (WITHOUT_LIMIT, "direct"))
