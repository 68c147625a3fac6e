"""The tables of README.md and of pages in docs/ equal the recorded results, which hold nothing else."""

import docs_tables
import pytest


@pytest.mark.parametrize("page", docs_tables.PAGES, ids=lambda page: page.name)
def test_tables_equal_the_recorded_results(page):
    assert page.read_text() == docs_tables.filled(page.read_text()), "run: python tests/docs/docs_tables.py"


def test_every_table_is_shown_once():
    pages = "".join(page.read_text() for page in docs_tables.PAGES)
    assert sorted(name for _, name, _ in docs_tables.PLACE.findall(pages)) == sorted(docs_tables.TABLES)


@pytest.mark.parametrize("file", docs_tables.FIGURES)
def test_recorded_results_hold_only_what_a_page_shows(file):
    recorded = docs_tables.results(file)
    assert recorded == docs_tables.pruned(file) and recorded.keys() == docs_tables.shown(file)


def test_the_output_in_the_readme_is_recorded():
    readme, recorded = docs_tables.PAGES[0].read_text(), docs_tables.RESULTS / "make-bench.txt"
    lines = [line for line in recorded.read_text().splitlines() if line and not line.startswith("#")]
    assert lines and all(line in readme for line in lines)
