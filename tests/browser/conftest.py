"""Traces with planted answers are made by the tests of traces."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))
