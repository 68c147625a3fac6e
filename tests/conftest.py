"""Leave out folders whose tests need a process or a machine of their own, unless the command line names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_all import APART

TESTS = Path(__file__).resolve().parent


def named(config: pytest.Config) -> list[Path]:
    """Return the files and folders of the command line."""
    return [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent != TESTS or collection_path.name not in APART:
        return None
    return None if any(path.is_relative_to(collection_path) for path in named(config)) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if any(TESTS.is_relative_to(path) for path in named(config)):
        for name, how in APART.items():
            terminalreporter.write_line(f"left out: tests/{name}; run it by {how}")
