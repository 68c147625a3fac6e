"""Every command that the pages about measurements tell readers to run succeeds with ``--quick``."""

import importlib
import re

import pytest
from bench_commands import ANYWHERE, HERE, ON_HOSTS, cases, run_quickly

DOCS = HERE.parents[1] / "docs"
PAGES = [DOCS / name for name in ("benchmarks.md", "development/measurements.md")]


@pytest.mark.long("measures, if quickly")
@pytest.mark.parametrize(("script", "argument"), cases(ANYWHERE))
def test_the_command_runs(script, argument):
    assert run_quickly(script, argument).strip()


def test_every_command_of_the_page_is_tried_out_here_or_on_hosts():
    named = set(re.findall(r"\b(bench_\w+\.py|figures\.py)\b", "".join(page.read_text() for page in PAGES)))
    tried = {script: {*ANYWHERE.get(script, []), *ON_HOSTS.get(script, [])} for script in {*ANYWHERE, *ON_HOSTS}}
    assert named <= tried.keys()
    for script in named:
        figures = getattr(importlib.import_module(script.removesuffix(".py")), "FIGURES", {""})
        assert set(map(kind, tried[script])) == set(map(kind, figures)), script


def kind(figure: str) -> str:
    """The name of a figure without the rate of its hosts' links."""
    return re.sub(r"-\d+[mg]bit", "", figure)
