"""The commands without a launcher: help, lists, completion, the words a bench is written in, bad input."""

from __future__ import annotations

import json
import math
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import mpicomp
from mpicomp.bench import COLLECTIVES
from mpicomp.bench import watchdog as bench_watchdog
from mpicomp.bench.plan import Plan, parse_size, show_size, size_range, split_names, split_schemes
from mpicomp.cli import config, version
from mpicomp.cli.bench.command import bench, make_plan
from mpicomp.cli.commands import COMMANDS
from mpicomp.cli.console import Column, folded, plain_line, print_json
from mpicomp.cli.mpi import rank_hint, size_hint
from mpicomp.cli.options import as_typed
from mpicomp.cli.outcome import ExitCode, Outcome, outcome_of
from mpicomp.cli.output import OutputFile
from mpicomp.cli.root import root
from mpicomp.comm.safety import survivors
from mpicomp.comm.safety import watchdog as comm_watchdog
from mpicomp.errors import InvalidArgument, MpicompError
from mpicomp.schemes import Scheme, names

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments: str):
    return CliRunner().invoke(root, list(arguments))


@pytest.mark.parametrize("arguments", [["-h"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "Usage: " in result.output


def pages(command, *names):
    """The words before ``--help`` of every command below ``command``."""
    yield names
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from pages(command.get_command(context, name), *names, name)


def test_every_help_page_fits_a_terminal_and_cuts_no_sentence():
    told = list(pages(root))
    assert len(told) > 40
    for words in told:
        text = invoke(*words, "--help").output
        assert max(map(len, text.splitlines())) <= 80, words
        assert "...\n" not in text.partition("\nCommands:\n")[2], words
        assert not re.search("mpirun( -n)?\n", text), words  # a command to copy, in two parts


def test_a_sentence_is_folded_at_blanks_only():
    text = "bind them: mpirun --bind-to core ... in /a/folder-with-hyphens/longer-than-the-line/whatever it is"
    lines = folded(text, 40, "CPUs  -> ").splitlines()
    assert lines[0] == "CPUs  -> bind them: mpirun --bind-to"
    assert all(line.startswith(" " * 9) and line[9] != " " for line in lines[1:])
    assert " ".join(line[9:] for line in lines) == text
    assert folded(text, None, "CPUs  ") == f"CPUs  {text}"  # no terminal: one line for programs


def test_version():
    said = invoke("--version").output
    assert said.startswith(f"mpicomp, version {mpicomp.__version__}\nPython {platform.python_version()}, numpy ")
    assert re.search(r"^MPI: (Open MPI|MPICH|MVAPICH|Intel).*, standard \d+\.\d+$", said, re.MULTILINE)
    assert re.search(r"^extension: compiled, (avx512|avx2|baseline)$", said, re.MULTILINE)
    assert re.search(r"^CUDA: (no driver|driver for CUDA \d+\.\d+|driver error \d+)$", said, re.MULTILINE)


def test_version_says_what_an_mpi_that_cannot_be_loaded_did(monkeypatch):
    """A library that ends the process, one that never returns, one that raises."""
    for ask, said in (("import os; os._exit(7)", "MPI: loading it ended Python with status 7: it said nothing"),
                      ("import time; time.sleep(60)", "MPI: not loaded within 0.5 s"),
                      ("raise OSError('libmpi.so.40 is missing')", "OSError: libmpi.so.40 is missing")):
        monkeypatch.setattr(version, "ASK", ask)
        monkeypatch.setattr(version, "ASK_S", 0.5 if "sleep" in ask else 30.0)
        assert said in invoke("--version").output


def test_children_find_what_this_process_finds_and_not_what_lies_in_their_folder(tmp_path, monkeypatch):
    (tmp_path / "mpicomp").mkdir()
    (tmp_path / "mpicomp" / "__init__.py").write_text("raise ImportError('a clone that is not compiled')")
    monkeypatch.chdir(tmp_path)
    assert "\nextension: compiled, " in invoke("--version").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bnech"], "No such command 'bnech' (did you mean 'bench'?)"),
        (["train", "logrge"], "No such command 'logrge' (did you mean 'logreg'?)"),
        (["bench", "--algoritm", "ring"], "--algorithm"),
        (["bench", "alreduce"], "(did you mean 'allreduce'?)"),
        (["bench", "-a", "rign"], "unknown algorithm 'rign' (did you mean 'ring'?)"),
        (["bench", "-s", "scalcom"], "unknown scheme 'scalcom' (did you mean 'scalecom'?)"),
        (["schemes", "topk:codc=sign"], "has no option 'codc' (did you mean 'codec'?)"),
        (["train", "logreg"], "try it without a file: --data synthetic"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_an_error_with_a_suggestion(capsys, arguments, said):
    """The exit code is 1, because 2 means a wrong result."""
    outcome = outcome_of(lambda: root.main(arguments, prog_name="mpicomp", standalone_mode=False))
    assert outcome.code == ExitCode.FAILED and said in outcome.text


@pytest.mark.parametrize(("line", "said"), [
    ("iters = 2.5", "'--iters': '2.5' is not a valid integer"),
    ("iters = true", "'--iters': 'True' is not a valid integer"),
    ("check = 0.5", "'--check': '0.5' is not a valid integer"),
    ("quiet = 2.5", "'--quiet': '2.5' is not a valid boolean"),
    ("no-shuffle = 'yes'", "no-shuffle must be true or false, got 'yes'"),
])  # fmt: skip
def test_values_of_a_configuration_are_parsed_as_those_of_the_command_line(tmp_path, line, said):
    file = tmp_path / "run.toml"
    file.write_text(f"[bench]\n{line}\n")
    for arguments in (["bench", "--config", str(file)], ["--config", str(file), "bench"]):
        outcome = outcome_of(lambda given=arguments: root.main(given, prog_name="mpicomp", standalone_mode=False))
        assert outcome.code == ExitCode.FAILED and said in outcome.text


def test_numbers_and_switches_of_a_configuration():
    table = {"iters": 3, "min-time": 1, "max-time": 2.5, "check": False, "shuffle": False, "no-check": True}
    command = bench.default_command
    found = command.make_context("bench", [], default_map=config.defaults(command, table, "[bench]")).params
    assert {name: found[name.replace("-", "_")] for name in table} == table
    assert type(found["iters"]) is type(found["check"]) is int and type(found["min_time"]) is float
    for table, shuffles in (({"no-shuffle": True}, False), ({"no_shuffle": False}, True), ({"shuffle": False}, False)):
        defaults = config.defaults(command, table, "[bench]")
        assert command.make_context("bench", [], default_map=defaults).params["shuffle"] is shuffles


def test_json_has_no_numbers_that_are_not_finite(capsys):
    print_json({"loss": math.nan, "series": [{"gap": math.inf}, (-math.inf, 0.1)], "steps": 3})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "loss": None, "series": [{"gap": None}, [None, 0.1]], "steps": 3}  # fmt: skip


def test_the_docs_list_every_exit_code():
    page = (ROOT / "docs" / "usage.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    assert sorted(int(code) for cell in cells for code in cell.split(",")) == sorted(ExitCode)
    assert (ExitCode.CALL_TIMED_OUT, ExitCode.RANK_GIVEN_UP) == (comm_watchdog.TIMED_OUT, survivors.OUT_OF_REACH)
    assert ExitCode.STEP_TIMED_OUT == bench_watchdog.TIMED_OUT


def commands(command, *names):
    """Every leaf below ``command``; the default command of bench, too."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in {*command.list_commands(context)}:
            yield from commands(command.get_command(context, name), *names, name)
    else:
        yield names, command


def test_a_short_letter_has_one_meaning_in_all_commands():
    meanings = {}
    for _, command in commands(root):
        for option in command.get_params(click.Context(command)):
            for letter in (name for name in option.opts if re.fullmatch("-[a-zA-Z]", name)):
                meanings.setdefault(letter, set()).add(next(name for name in option.opts if name.startswith("--")))
    assert {letter: names for letter, names in meanings.items() if len(names) > 1} == {}
    page = (ROOT / "docs" / "usage.md").read_text().partition("## Short options")[2].partition("\n## ")[0]
    table = [re.findall(r"`(--?[\w-]+)`", line) for line in page.splitlines() if line.startswith("| `-")]
    documented = {letter: name for words in table
                  for letter, name in zip(words[: len(words) // 2], words[len(words) // 2 :], strict=True)}
    assert documented == {letter: names.pop() for letter, names in meanings.items()}


@pytest.mark.parametrize("words", [["bench"], ["tune"], ["simulate"], ["advise"], ["train", "mlp"]], ids=" ".join)
def test_options_of_long_commands_are_in_sections(words):
    titles = re.findall(r"^(\w[\w ]+):$", invoke(*words, "--help").output, re.MULTILINE)
    assert len(titles) >= 3 and "Output" in titles and titles[-1] == "Options"


def test_bench_points_to_its_own_help():
    result = invoke("bench", "--nonsense")
    assert result.exit_code == 2
    assert " bench --help' for help." in result.output


def test_errors_of_the_system_name_the_file_and_the_reason(tmp_path):
    missing = tmp_path / "none.json"
    assert outcome_of(missing.read_text) == Outcome(1, f"Error: {missing}: No such file or directory")


@pytest.mark.parametrize(("value", "traced"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_a_traceback_is_shown_if_it_is_asked_for(monkeypatch, tmp_path, value, traced):
    monkeypatch.delenv("MPICOMP_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("MPICOMP_DEBUG", value)
    text = outcome_of((tmp_path / "nowhere").read_text).text
    assert text.startswith("Traceback") == traced and f"Error: {tmp_path}" in text


def test_memory_that_runs_out_is_no_bug():
    told = outcome_of(lambda: np.empty(2**60, np.int8))
    assert told.code == 1 and "Traceback" not in told.text
    assert re.match(r"Error: not enough memory \(Unable to allocate 1.00 EiB .*\): take ", told.text)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed(tmp_path, closed):
    """The file that is written must not get the number of a closed stream, nor the command an error from printing."""
    output = tmp_path / "result.json"
    words = ["bench", "--sizes", "1K", "-n", "5", "-a", "native", "-q", "--output", str(output)]
    command = f"{shlex.join([sys.executable, '-m', 'mpicomp.cli', *words])} {closed}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert json.loads(output.read_text())["rows"]


def test_output_that_is_full():
    ended = subprocess.run(["bash", "-c", f"{shlex.quote(sys.executable)} -m mpicomp.cli schemes > /dev/full"],
                           capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (1, "Error: reading or writing: No space left on device\n")


def test_nothing_lies_beside_an_output_file_while_the_command_works(tmp_path):
    """A signal may end the work at any time."""
    file = OutputFile(None, str(tmp_path / "result.json"), force=False)
    assert not [*tmp_path.iterdir()]
    file.write(lambda path: path.write_text("whole"))
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_schemes_lists_every_scheme():
    rows = json.loads(invoke("schemes", "--json").output)["schemes"]
    assert [row["name"] for row in rows] == names()
    text = invoke("schemes").output
    for row in rows:
        assert row["reference"] in text and row["wire"] in text
        assert all(option["name"] in text for option in row["options"])


def test_schemes_of_one_name():
    text = invoke("schemes", "topk:codec=levels").output
    assert "residual + top-k + levels + gather" in text and "codec=levels" in text and "gtopk" not in text
    assert "129,373 bytes per step" in text and "Alistarh" in text and "restriction codec levels: " in text
    assert "sends" not in text  # the formula is for topk's own codec
    text = invoke("schemes", "scalecom").output
    assert "residual + chunk-max + float + leader" in text
    assert "gtopk" not in text
    assert "layers=per-tensor" in invoke("schemes", "topk").output  # a common option, but not its usual default
    row = json.loads(invoke("schemes", "scalecom", "--json").output)["schemes"][0]
    shown = cells_of(text)
    assert all(shown[option["name"]][1:] == [option["range"], option["meaning"]] for option in row["options"])
    assert max(map(len, text.splitlines())) <= 120


def cells_of(text):
    """The cells of tables of options, by the options' names; cells cut between words are joined again."""
    cells, cuts, name = {}, None, ""
    for line in text.splitlines():
        if line.startswith("option "):
            cuts = [line.index(title) for title in re.split(" +", line)[1:]]
            continue
        if not line or cuts is None:
            cuts = None
            continue
        parts = [line[start:stop].strip() for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
        name = parts[0] or name
        cells[name] = [" ".join(filter(None, pair)) for pair in zip(cells.get(name, [""] * 3), parts[1:], strict=True)]
    return cells


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    text = invoke("completion", shell).output
    assert "_MPICOMP_COMPLETE" in text
    assert "To install: " in text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("1K", 1024), ("64k", 65536), ("1.5M", 1572864), ("2GiB", 2**31), ("8 B", 8), ("1T", 2**40)],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "K", "4Q", "1e6", "nan", "1K2", "0.1", "9" * 400])
def test_nonsense_sizes(text):
    with pytest.raises(InvalidArgument, match="a size is a number of bytes"):
        parse_size(text)


def test_shown_sizes():
    assert [show_size(n) for n in (1, 1023, 1024, 1536, 2**20, 100 * 2**20, 2**31)] == [
        "1 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "100 MiB", "2 GiB"
    ]  # fmt: skip


def test_size_range():
    assert size_range(1024, 65536, 4) == (1024, 4096, 16384, 65536)
    assert size_range(5, 5, 2) == (5,)
    assert size_range(1, 4, 1.1) == (1, 2, 3)
    with pytest.raises(InvalidArgument, match="must not be above"):
        size_range(2, 1, 2)
    for factor in (1, 0, -2, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="step-factor"):
            size_range(1, 2, factor)


def test_schemes_are_split_at_the_right_commas():
    text = ["scalecom:chunk=112,beta=0.1,topk:density=0.01", "dense, topk,k=5"]
    assert split_schemes(text) == ("scalecom:chunk=112,beta=0.1", "topk:density=0.01", "dense", "topk:k=5")
    assert split_schemes(["dense,dense"]) == ("dense",)
    for scheme in split_schemes(text):
        Scheme.parse(scheme)


def test_names_are_split():
    assert split_names(["native, ring", "ring", ""]) == ("native", "ring")


def plan(**given) -> Plan:
    options = {
        "algorithm": (), "scheme": (), "sizes": (), "min_bytes": "1K", "max_bytes": "4K", "step_factor": 2.0, **given
    }  # fmt: skip
    return make_plan(**options)


def test_default_plan():
    default = plan()
    assert default.algorithms == COLLECTIVES["allreduce"].algorithms()
    assert default.algorithms[0] == "native"
    assert default.schemes == ()
    assert default.sizes == (1024, 2048, 4096)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"algorithm": ("rnig",)}, "unknown algorithm 'rnig'"),
        ({"scheme": ("topp",)}, "unknown scheme 'topp'"),
        ({"scheme": ("topk:densty=1",)}, "no option 'densty'"),
        ({"scheme": ("topk:density=0",)}, r"density must be in \(0, 1\], got 0"),
        ({"scheme": ("topk:density=1.5",)}, r"density must be in \(0, 1\], got 1.5"),
        ({"scheme": ("scalecom:chunk=0",)}, "chunk must be in"),
        ({"sizes": ("4Q",)}, "a size is"),
        ({"sizes": (" ,",)}, "--sizes names no size"),
        ({"step_factor": 1.0000001}, "more than 10000 sizes"),
        ({"min_bytes": "1", "max_bytes": "1T", "step_bytes": "1"}, "more than 10000 sizes"),
        ({"min_bytes": "2K", "max_bytes": "1K"}, "must not be above"),
        ({"iters": 0}, "iters must be"),
        ({"max_time": float("nan")}, "max_time must be"),
        ({"timeout": -1.0}, "timeout must be"),
        ({"scheme": ("topk",), "dtype": "int32"}, "floating-point"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"bound": ("0",)}, "bound must be a positive finite number, got 0"),
        ({"bound": ("1e-3,inf",)}, "bound must be a positive finite number, got inf"),
        ({"bound": ("nan",)}, "bound must be a positive finite number, got nan"),
        ({"bound": ("small",)}, "bound must be a positive finite number such as 1e-4: .*'small'"),
        ({"data": "noise"}, "--data belongs to an error bound: give --bound"),
        ({"relative": True}, "--relative belongs to an error bound: give --bound"),
        ({"bound": ("1",), "data": "smoth"}, r"--data must be one of .*, got 'smoth' \(did you mean 'smooth'"),
        ({"bound": ("1",), "dtype": "half"}, "--dtype must be float32 or float64, got float16"),
        ({"bound": ("1",), "dtype": "all"}, "--dtype must be float32 or float64, got all"),
        ({"bound": ("1",), "op": "max"}, "--op must be sum or avg, got max"),
        ({"bound": ("1",), "collective": "bcast"}, "collective must be allreduce, got bcast"),
    ],
)
def test_bad_plans(given, text):
    with pytest.raises(MpicompError, match=text):
        plan(**given)


def test_sizes_that_are_no_whole_elements_are_told():
    assert Plan((3, 8, 10), ("native",)).cut_sizes(3) == {3: [4], 10: [8]}
    assert Plan((12, 1024), ("native",), collective="allgather").cut_sizes(3) == {1024: [1020]}
    assert Plan((9,), ("native",), dtype="all").cut_sizes(1) == {9: [8]}
    assert Plan((6,), ("native",), dtype="all").cut_sizes(1) == {6: [4, 6, 8]}


def test_errors_name_the_option_that_was_given():
    command = bench.default_command
    assert as_typed("max_time must be a number", command) == "--max-time must be a number"
    assert as_typed("rank 1: agg_iters must be above 0", command) == "rank 1: --agg-iters must be above 0"
    assert as_typed("root must be a rank, not my_root; max_time too", command) == (
        "root must be a rank, not my_root; max_time too"
    )


def test_hints(monkeypatch):
    for variable in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    assert (rank_hint(), size_hint()) == (0, 1)  # an allocation, but nothing started in it
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert (rank_hint(), size_hint()) == (5, 8)
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert (rank_hint(), size_hint()) == (3, 8)


def test_plain_lines_are_never_cut():
    columns = [Column("size", 4), Column("name", 6, left=True), Column("x", 3)]
    assert plain_line(["1", "ring", "2"], columns, [4, 6, 3]) == "   1  ring      2"
    assert "a-very-long-name" in plain_line(["1", "a-very-long-name", "2"], columns, [4, 6, 3])
