"""The HTML report: whole, self-contained, harmless, and with the numbers of the trace."""

import os
import random
import re
from html.parser import HTMLParser

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from planted_runs import Run

import mpicomp.trace
from mpicomp.cli.trace.command import trace as command
from mpicomp.trace.units import duration, nbytes, some_ranges

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'mpicomp[plot]')")

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps texts, attributes and identifiers."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.attributes, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


def written(path, *arguments):
    output = path.with_name("report.html")
    result = CliRunner().invoke(command, ["report", str(path), "-o", str(output), *arguments])
    assert result.exit_code == 0, result.output
    return output


def test_it_holds_the_numbers_and_the_pictures(planted_trace):
    page = Page(written(planted_trace).read_text())
    report = mpicomp.trace.report(planted_trace)
    for row in report["phases"]:
        assert {row["kind"], str(row["count"]), duration(row["total"]), nbytes(row["nbytes_sent"])} <= set(page.words)
    for number in (report["run"]["run_id"], report["run"]["n_events"], duration(report["run"]["duration"])):
        assert str(number) in page.words
    assert page.tags.count("svg") == 6 and "loss" in page.words
    assert {"exchange", "share of its time (%)", "median lateness (ms)"} <= set(page.words)
    _sections_say_what_analyses_say(page.words, planted_trace)


def _sections_say_what_analyses_say(words, planted_trace):
    late, split, hidden, times = (getattr(mpicomp.trace, name)(planted_trace)
                                  for name in ("stragglers", "breakdown", "overlap", "efficiency"))  # fmt: skip
    assert late["late_ranks"] == [2] and any(word.startswith("Late: rank 2, at 10 calls of exchange") for word in words)
    assert {f"{share:.1%}" for share in split["overall"]["share"]} <= set(words)
    assert any(word.startswith(f"{hidden['share']:.1%} of the communication is hidden") for word in words)
    assert any(f"load balance {times['load_balance']:.1%}" in word for word in words)
    limit = duration(mpicomp.trace.spikes(planted_trace)["limit"])
    assert f"None of 10 steps took much longer than the median (above {limit})." in words


def test_it_asks_for_nothing_from_outside(planted_trace):
    text = written(planted_trace).read_text()
    page = Page(text)
    assert "://" not in text and "@import" not in text and not {"script", "link", "iframe", "img"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("href", "xlink:href", "src"):
            assert value.startswith(("#", "data:image/png;base64,")), (name, value)
        assert not name.startswith("on")
    assert set(re.findall(r"url\(([^)]*)", text)) <= {f"#{value}" for name, value in page.attributes if name == "id"}
    assert "default-src 'none'" in text and "color-scheme: light dark" in text and "@media print" in text
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))


def test_hostile_names_stay_text(plant, spool, tmp_path):
    plant.run = {**plant.run, "title": "<script>alert(1)</script>", "command_line": ["a", "</td><img src=x>"]}
    plant(0).events(("<b>$kind_{", 0, 10, 0)).metric("<i>$\\frac{", 1.0, 2.0).done()
    mpicomp.trace.recover(spool, tmp_path / "run.h5")
    page = Page(written(tmp_path / "run.h5").read_text())
    assert not {"script", "img", "b", "i"} & set(page.tags)
    assert "<b>$kind_{" in page.words and "<i>$\\frac{" in page.words
    assert any("INCOMPLETE: missing: rank 1-2" in word for word in page.words)


def test_a_run_of_nothing_has_a_page(plant, spool, tmp_path):
    plant(0).done()
    mpicomp.trace.recover(spool, tmp_path / "run.h5")
    assert {"No step was recorded.", "None."} <= set(Page(written(tmp_path / "run.h5").read_text()).words)


def test_nothing_is_replaced_silently(planted_trace):
    output = planted_trace.with_name("report.html")
    output.write_text("precious")
    result = CliRunner().invoke(command, ["report", str(planted_trace), "-o", str(output)])
    assert result.exit_code == 1 and "exists already" in result.output and output.read_text() == "precious"
    assert written(planted_trace, "--force").read_text().startswith("<!DOCTYPE html>")
    with h5py.File(planted_trace, "r+") as file:
        del file["events"]
    output.unlink()
    result = CliRunner().invoke(command, ["report", str(planted_trace), "-o", str(output)])
    assert result.exit_code == 1 and sorted(os.listdir(output.parent)) == ["run.h5", "run.h5.spool"]


def test_many_ranks_are_counted_not_listed():
    late = sorted(random.sample(range(0, 10_000, 2), 40))  # no two of them neighbours
    assert some_ranges(late) == f"{','.join(map(str, late[:16]))} and 24 more"
    assert some_ranges(list(range(3000))) == "0-2999"


def test_steps_of_nothing_but_waiting_have_a_page(path):
    """Then there is no useful time to take shares of; and metrics may be beyond what axes can show."""
    step = np.arange(12)
    run = Run(2).add("step", [[0], [1]], step, step * 1000, step * 1000 + 1000)
    run.add("exchange", [[0], [1]], step, step * 1000, step * 1000 + 1000)
    run.metric("loss", [1e308, -1e308, np.inf, np.nan, *[1.0] * 8]).metric("wild", [np.inf] * 12).write(path)
    result = mpicomp.trace.efficiency(path)
    assert result["load_balance"] is None and result["parallel_efficiency"] == 0
    words = Page(written(path).read_text()).words
    assert any("load balance - x communication efficiency 0.0%" in word for word in words)
    assert "Metric loss: mean over ranks" in words and "Metric wild: mean over ranks" not in words
