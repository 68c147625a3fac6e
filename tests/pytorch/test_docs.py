"""The example of docs/pytorch.md runs as it stands, and learns."""

import re
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs():
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", example + "\nprint(loss.item())"], capture_output=True, text=True,
                          timeout=110)
    assert not done.returncode, done.stderr
    assert float(done.stdout) < 0.9  # ln 3 = 1.0986 at the beginning
