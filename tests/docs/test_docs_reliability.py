"""The claims of docs/reliability.md: the tests it names exist, and no fault of the matrix is left out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
FAULTS = TEXT.partition("## Faults, outcomes, tests")[2].partition("## Many small jobs")[0]


def rows(text):
    """The cells of every line of every table."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines]


def test_every_test_that_is_named_is_there():
    there = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for name in re.findall(r"\b(tests/[\w/]+\.py|test_\w+\.py)\b", TEXT):
        assert (ROOT / name).exists() if name.startswith("tests/") else name in there, name


def test_every_fault_has_a_test_or_says_why_not():
    faults = [row for row in rows(FAULTS) if re.match(r"F\d", row[0])]
    assert {int(number) for row in faults for number in re.findall(r"F(\d+)", row[0])} >= set(range(1, 32))
    for number, _, outcome, test in faults:
        assert outcome and re.search(r"test_\w+\.py|soak_\w+\.py|by hand|not tested: ", test), number


def test_every_promise_says_who_keeps_it_and_which_test_shows_it():
    promises = TEXT.partition("## Promises")[2].partition("## ")[0]
    numbered = re.findall(r"^(\d)\. \*\*", promises, re.M)
    table = {row[0]: row for row in rows(promises) if len(row) == 3 and row[0] in numbered}
    assert list(table) == numbered
    for _, kept, tested in table.values():
        files = re.findall(r"mpicomp/\S+?(?=`)", kept)
        assert files and all((ROOT / file).exists() for file in files), kept
        assert re.search(r"tests/\S+\.py", tested)


def test_every_variable_that_is_read_says_what_counts_where_ranks_differ():
    said = TEXT.partition("**Ranks whose environments differ.**")[2].partition("\n## ")[0]
    sources = [*(ROOT / "mpicomp").rglob("*.py"), *(ROOT / "apps").rglob("*.py"), *(ROOT / "mpicomp").rglob("*.cpp")]
    read = set(re.findall(r'"((?:MPICOMP_[A-Z_]+|NO_COLOR))"', "\n".join(path.read_text() for path in sources)))
    assert len(read) > 12
    assert read == set(re.findall(r"`([A-Z_]+)`", "\n".join(line.split("|")[1] for line in said.splitlines()
                                                            if line.startswith("| `"))))  # fmt: skip
