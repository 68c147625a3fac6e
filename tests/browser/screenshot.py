"""Screenshot of the trace report for the documentation: `python tests/browser/screenshot.py` (needs Chromium).

The run is generated: six ranks, of which rank 4 is late in every step, and one step in which all ranks are slow.
"""

import base64
import sys
import tempfile
from pathlib import Path

import chromium
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trace"))

from planted_runs import lockstep  # noqa: E402

from mpicomp.trace import write_page  # noqa: E402

LATE, SPIKE, STEPS = 4, 17, 40


def main(path: Path, width: int = 830, height: int = 925) -> None:
    """Write the top of the report page, in light mode, as PNG."""
    rng = np.random.default_rng(1)
    delay = np.zeros((6, STEPS), np.int64)
    delay[LATE] = 60_000
    delay[:, SPIKE] += 3_000_000
    run = lockstep(6, STEPS, delay, rng)
    rank, begin = np.arange(6)[:, None], 10**12 + np.concatenate([[0], np.cumsum(run.length.max(axis=0))])[None, :-1]
    run.add("select", rank, np.arange(STEPS)[None, :], begin + 10, begin + 20_000)
    with tempfile.TemporaryDirectory() as folder:
        run.metric("loss", 1 / (1 + np.arange(STEPS))).write(Path(folder) / "run.h5")
        write_page(Path(folder) / "run.h5", Path(folder) / "report.html")
        with chromium.Browser(Path(folder) / "profile") as browser:
            browser.prefer("light")
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                         mobile=False)  # fmt: skip
            browser.open(f"file://{folder}/report.html")
            shot = browser.call("Page.captureScreenshot", format="png")
    path.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main(ROOT / "docs" / "images" / "trace-report.png")
