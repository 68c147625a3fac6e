"""The page docs/schemes.md says what the registry says, and every scheme written in the documentation is one."""

import re
from pathlib import Path

import pytest

import mpicomp
from mpicomp import schemes

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMON = {option["name"]: option["default"] for option in schemes.common_options()}


def documented(row):
    """The line of the table for a row of ``mpicomp schemes --json``."""
    parts = " + ".join(row[kind] for kind in ("memory", "selector", "codec", "exchange"))
    schedule = "" if row["schedule"] == "warm-up" else f", schedule {row['schedule']}"
    options = [(one["name"], one["default"]) for one in row["options"] if COMMON.get(one["name"], ()) != one["default"]]
    given = " ".join(name if default is None else f"{name}={default}" for name, default in options)
    return f"| `{row['name']}` | {parts}{schedule} | {given} | {row['wire']} | {row['reference']} |"


def test_the_table_is_the_registry():
    lines = (ROOT / "docs" / "schemes.md").read_text().splitlines()
    table = [line for line in lines if re.match(r"\| `[a-z0-9-]+` \| [a-z-]+ \+ ", line)]
    assert table == [documented(row) for row in schemes.table()]


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_their_number_is_right(page):
    counts = re.findall(r"schemes \| (\d+),|\b(\d+) schemes", (ROOT / page).read_text())
    assert {int(one or other) for one, other in counts} == {len(schemes.names())}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_all_but_dense_are_lossy(page):
    assert re.findall(r"(\d+)\s+\*\*lossy\*\* schemes", (ROOT / page).read_text()) == [str(len(schemes.names()) - 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_schemes_in_the_documentation_parse(page):
    blocks = re.findall(r"^```python\n.*?^```", page.read_text(), re.DOTALL | re.MULTILINE)
    shown = page.read_text()
    for block in blocks:
        if "register_part" in block:  # defines options of its own
            shown = shown.replace(block, "")
    for text in re.findall(r"[`\"\s]((?:" + "|".join(schemes.names()) + r"):\w+=[\w.=,+-]+)[`\"]", shown):
        mpicomp.Scheme.parse(text)


@pytest.mark.parametrize("kind", schemes.PARTS)
def test_every_part_is_documented(kind):
    """docs/algorithms.md has an entry in its own words for each part."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    assert [name for name in schemes.PARTS[kind] if f"**`{name}`**" not in text] == []


def test_the_tests_named_against_known_mistakes_exist():
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "algorithms.md").read_text())
    assert names
    assert [f"{file}::{test}" for file, test in names if f"def {test}(" not in (ROOT / file).read_text()] == []
