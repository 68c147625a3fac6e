"""The HTML report in a real browser: whole, quiet, asking for nothing, and readable in light, in dark and on paper."""

import os
import re

import chromium
import numpy as np
import pytest
from planted_runs import lockstep

from mpicomp.trace import write_page

image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed (pip install 'mpicomp[plot]')")
pytestmark = [pytest.mark.skipif(chromium.binary() is None, reason=chromium.WHERE), pytest.mark.timeout(240)]

LATE, SPIKE = 4, 17
BLUE, ORANGE = (31, 119, 180), (255, 127, 14)  # computation and what comes before it in pictures
# Contrast ratios of all texts with what lies behind them, by the formula of WCAG 2.
CONTRASTS = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (colour) => {
    const [r, g, b] = [...rgb(colour)].slice(0, 3).map((x) => x / 255)
      .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("h1, h2, p, td, th, a, figcaption, svg text")].map((node) => {
    const style = getComputedStyle(node);
    const ink = luminance(node.closest("svg") ? style.fill : style.color);
    return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
  });
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A run of six ranks of which one is late, with a spike, a scheme and a metric."""
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
    delay = np.zeros((6, 40), np.int64)
    delay[LATE] = 60_000
    delay[:, SPIKE] += 3_000_000
    folder = tmp_path_factory.mktemp("page")
    run = lockstep(6, 40, delay, rng)
    rank, begin = np.arange(6)[:, None], 10**12 + np.concatenate([[0], np.cumsum(run.length.max(axis=0))])[None, :-1]
    run.add("select", rank, np.arange(40)[None, :], begin + 10, begin + 20_000)
    run.metric("loss", 1 / (1 + np.arange(40))).write(folder / "run.h5")
    write_page(folder / "run.h5", folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory, page):
    with chromium.Browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0,
                    uploadThroughput=0)  # fmt: skip
        opened.call("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)
        opened.open(page.as_uri())
        yield opened


def colours(path):
    """The colours of a picture that fill some of it, and the code of the one that fills most."""
    pixels = (image.imread(path)[::2, ::2, :3] * 255).round().astype(int).reshape(-1, 3)
    counts = np.bincount(pixels @ [1 << 16, 1 << 8, 1])
    seen = np.flatnonzero(counts > 20).tolist()
    return {(code >> 16, code >> 8 & 255, code & 255) for code in seen}, int(counts.argmax())


def test_it_complains_of_nothing_and_asks_for_nothing(browser, page):
    assert browser.complaints() == []
    asked = [url for url in browser.requested() if url != page.as_uri()]
    assert all(url.startswith("data:image/png") for url in asked), asked


def test_all_pictures_are_to_be_seen(browser):
    sizes = browser.ask("[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect())"
                        ".map(r => [r.width, r.height, r.left, r.right])")  # fmt: skip
    assert len(sizes) >= 6
    assert all(width > 500 and height > 100 and left >= 0 and right <= 1000 for width, height, left, right in sizes)
    maps = browser.ask("[...document.querySelectorAll('image')].map(e => e.href.baseVal.slice(0, 15))")
    assert maps and set(maps) == {"data:image/png;"}


def test_it_answers_what_was_planted(browser):
    text = browser.ask("document.body.innerText")
    assert f"Late: rank {LATE}," in text
    made_by = rf"{SPIKE}\s+6 ranks, most rank {LATE}\s+compute"
    assert re.search(rf"1 of 40 steps took much longer .*\n(.*\n)*{made_by}", text), text
    assert browser.ask("document.documentElement.scrollWidth") <= 1000


@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
def test_it_can_be_read_in_light_and_in_dark(browser, tmp_path, scheme, dark):
    browser.prefer(scheme)
    contrasts = browser.ask(CONTRASTS)
    assert len(contrasts) > 100 and min(contrasts) >= 4.5, min(contrasts)
    seen, ground = colours(browser.picture(tmp_path / "page.png"))
    assert {BLUE, ORANGE} <= seen
    assert (ground < 0x404040) == dark


def test_a_reader_of_the_dark_prints_black_on_white(browser, tmp_path):
    browser.prefer("dark", "print")
    assert min(browser.ask(CONTRASTS)) >= 4.5
    _, ground = colours(browser.picture(tmp_path / "page.png"))
    assert ground == 0xFFFFFF
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    sheets = browser.paper(tmp_path / "page.pdf").read_bytes()
    assert sheets.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 8


def test_a_narrow_screen_scrolls_tables_not_the_page(browser):
    browser.prefer("light")
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.ask("document.documentElement.scrollWidth") <= 400
