"""The example of docs/pytorch.md runs as it stands, and learns."""

import re
from pathlib import Path

import needs_torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs():
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(compile(example, "docs/pytorch.md", "exec"), names)
    names["optimizer"].close()
    assert names["loss"].item() < 0.9  # ln 3 = 1.0986 at the beginning
