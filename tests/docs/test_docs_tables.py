"""The figures of README.md, docs/benchmarks.md and docs/fidelity.md are those in docs/results."""

import docs_tables
import pytest


@pytest.mark.parametrize("page", docs_tables.PAGES, ids=lambda page: page.name)
def test_tables_equal_the_recorded_results(page):
    assert page.read_text() == docs_tables.filled(page.read_text()), "run: python tests/docs/docs_tables.py"


def test_every_table_is_shown_once():
    pages = "".join(page.read_text() for page in docs_tables.PAGES)
    assert sorted(name for _, name, _ in docs_tables.PLACE.findall(pages)) == sorted(docs_tables.TABLES)


def test_the_output_in_the_readme_is_recorded():
    readme, recorded = docs_tables.PAGES[0].read_text(), docs_tables.RESULTS / "make-bench.txt"
    lines = [line for line in recorded.read_text().splitlines() if line and not line.startswith("#")]
    assert lines and all(line in readme for line in lines)
