"""Prose that users read avoids patterns that a machine can see: pages, `--help` texts and error messages.

A finding is fixed by rewriting the sentence. docs/contributing.md has the rules in words.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from mpicomp.cli.root import root

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "slurm" / "README.md",
         *sorted(path for path in (ROOT / "docs").rglob("*.md") if "development" not in path.parts)]
UNITS = (r"bytes?|ms|us|seconds?|milliseconds|microseconds|messages?|launches|elements?|values?|[MGk]B|[MG]iB|times?|"
         r"bits?|steps?|threads?|files?|indices")
PER = (r"rank|step|host|node|message|element|worker|call|value|group|segment|tensor|array|line|file|run|launch|second|"
       r"row|core|GPU|round|block|bucket|event|process")
RULES = {
    "'per', not 'a'": rf"\b({UNITS}) an? ({PER})\b(?! (of|that|in|as|is|are|has|sends)\b)",
    "'if' for conditions": r"\bwhere (there (is|are)|that is so|MPI (is|takes|gives)|none|one is|no|any|this is)\b",
    "a verb of the field": r"\b(mended?|is told|are told|stands? still|comes? to its end|gets? on with|lies? at)\b",
    "a noun, not 'what was ...'": r"(^|[.;:(] )(what|who) (was|is|has|were|had|goes|came) ",
    "an agent, not 'nobody'": r"\b(nobody|hardly (anybody|any)|in vain|for who does|who is gone)\b",
    "the present": r"\b(since then|(hours|days) (before|earlier)|on another day|no longer (needs|takes)|used to be)\b",
}
COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in RULES.items()}
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def findings(text):
    """Rule, and the words that break it, for every finding in a text."""
    return [f"{name}: ...{text[max(0, found.start() - 30):found.end() + 30]}..."
            for name, pattern in COMPILED.items() for found in pattern.finditer(text)]  # fmt: skip


def helps(command=root, name="mpicomp"):
    """The help texts of a command, its options and its subcommands."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        for child in command.list_commands(click.Context(command)):
            yield from helps(command.get_command(click.Context(command), child), f"{name} {child}")


def messages(path):
    """The strings of the exceptions that a module raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield f"{path.relative_to(ROOT)}:{part.lineno}", part.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_pages(page):
    assert findings(CODE.sub("CODE", page.read_text())) == []


def test_help_texts():
    assert [(name, found) for name, text in helps() for found in findings(text)] == []


def test_error_messages():
    sources = [*(ROOT / "mpicomp").rglob("*.py"), *(ROOT / "apps").glob("*.py")]
    assert [(place, found) for path in sources for place, text in messages(path) for found in findings(text)] == []


@pytest.mark.parametrize("wrong", [
    "sends 8 bytes a rank", "staged where there is no CUDA", "the error is told to all: they are told", "in vain",
    "longer. What was sent stays", "as it was two days earlier",
])
def test_the_rules_find_what_they_should(wrong):
    assert findings(wrong)


@pytest.mark.parametrize("right", ["8 bytes per rank", "where a page begins", "the second value a rank sends"])
def test_the_rules_leave_the_rest(right):
    assert findings(right) == []
