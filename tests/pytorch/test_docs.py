"""The example of docs/pytorch.md and docs/examples/torch_model.py run as they stand, and learn."""

import re
from pathlib import Path

import needs_torch  # noqa: F401

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_example_runs():
    example = re.search(r"```python\n(.*?)```", (DOCS / "pytorch.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(compile(example, "docs/pytorch.md", "exec"), names)
    names["optimizer"].close()
    assert names["loss"].item() < 0.9  # ln 3 = 1.0986 at the beginning


def test_the_file_among_the_examples_learns():
    names = {}
    exec(compile((DOCS / "examples" / "torch_model.py").read_text(), "torch_model.py", "exec"), names)
    assert names["last"] < 0.6 * names["first"]
