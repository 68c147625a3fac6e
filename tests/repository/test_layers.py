"""The architecture as a test: who imports whom, which file may import which library, and how long things may be."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up. A module may import modules of lower layers, and of its own folder; folders of one layer are
# siblings that do not know each other. Keep in step with docs/architecture.md.
LAYERS = (
    ({"_util", "_version", "errors"},),
    ({"ops"},),
    ({"types"},),  # values whose methods take the operations
    ({"allreduce"},),
    ({"comm"},),
    ({"schemes"},),
    ({"reducer"},),
    ({"optim"},),
    ({"bench"}, {"checkpoint"}, {"simulate"}, {"torch"}, {"trace"}),
    ({"apps"},),
    ({"cli"},),
)
# Kinds of parts in schemes/: siblings that do not know each other.
PARTS = ("codecs", "exchanges", "memories", "selectors")
MAX_MODULES = 4  # in the package's root

# Which files may import a library, as path prefixes.
LIBRARIES = {
    # The door; and the module that starts MPI before a command and ends the job after it.
    "mpi4py": ("mpicomp/comm/", "mpicomp/cli/guard.py", "mpicomp/cli/mpi.py"),
    "h5py": ("mpicomp/_util/hdf5.py", "mpicomp/trace/", "mpicomp/bench/hdf5.py", "mpicomp/checkpoint/parts.py"),
    "matplotlib": (
        "apps/plots.py", "mpicomp/bench/plot.py", "mpicomp/simulate/plot.py", "mpicomp/trace/analyses/plots.py",
    ),
    "PIL": ("apps/cifar.py", "apps/class_folders.py"),
    "pyarrow": ("mpicomp/trace/exporting.py",),
    "tomllib": ("mpicomp/cli/config.py",),
    "click": ("mpicomp/cli/",),
    "rich": ("mpicomp/cli/",),
    "cupy": ("mpicomp/ops/gpu/cuda_runtime.py", "mpicomp/ops/device.py"),
    "torch": ("mpicomp/torch/", "apps/torch_model.py"),
}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
IMPORT_BUDGET_S = 0.1  # of ``import mpicomp``, beyond NumPy's own


def sources() -> list[Path]:
    return sorted([*(ROOT / "mpicomp").rglob("*.py"), *(ROOT / "apps").rglob("*.py")])


def module_name(path: Path) -> str:
    """``mpicomp.cli.bench`` for its file; apps/ is installed as mpicomp.apps."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "apps":
        parts.insert(0, "mpicomp")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything a file imports, also inside functions and under TYPE_CHECKING."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def place(unit: str) -> tuple[int, set[str]]:
    """The layer of a top-level module of the package, and the group it belongs to."""
    for level, groups in enumerate(LAYERS):
        for group in groups:
            if unit in group:
                return level, group
    raise AssertionError(f"mpicomp.{unit} has no layer: add it to LAYERS here and to docs/architecture.md")


def unit(name: str) -> str | None:
    """``cli`` for ``mpicomp.cli.bench.bench``; None outside the package and for the package itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == "mpicomp" and len(parts) > 1 else None


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    mine = unit(module_name(path))
    if mine is None:
        return  # the package's own face may name everything
    level, group = place(mine)
    for name in imports(path):
        other = unit(name)
        # ``mpicomp.Comm`` and the like: the public face, for the applications that stand on it
        if other is None or other == mine or other[0].isupper() or other == "__version__":
            continue
        assert place(other)[0] < level or other in group, f"{path} imports {name}, which is not below it"


def test_parts_of_one_kind_do_not_know_the_others() -> None:
    for path in (ROOT / "mpicomp" / "schemes").rglob("*.py"):
        mine = path.relative_to(ROOT / "mpicomp" / "schemes").parts[0]
        for name in imports(path) if mine in PARTS else ():
            other = name.removeprefix("mpicomp.schemes.").split(".")[0]
            assert other == mine or other not in PARTS, f"{path} imports {name}: {mine} must not know {other}"


def test_no_module_imports_itself_in_a_circle() -> None:
    modules = {module_name(path): path for path in sources()}
    graph = {
        name: {found for found in (other if other in modules else other.rpartition(".")[0] for other in imports(path))
               if found in modules and found != name}
        for name, path in modules.items()
    }  # fmt: skip
    assert list(TopologicalSorter(graph).static_order())  # a circle is a CycleError that names its modules


def test_only_tests_import_the_oracle() -> None:
    """No test compares an operation with itself. ``MPICOMP_OPS=reference`` names the oracle in a string."""
    oracle = "mpicomp.ops.oracle."
    for path in sources():
        for name in imports(path) if not f"{module_name(path)}.".startswith(oracle) else ():
            assert not f"{name}.".startswith(oracle), f"{path} imports {name}"


def test_the_root_holds_folders() -> None:
    modules = [path.name for path in (ROOT / "mpicomp").glob("*.py")]
    assert len(modules) <= MAX_MODULES, f"move one of {modules} into a folder"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_libraries_stay_behind_their_door(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    for name in imports(path):
        doors = LIBRARIES.get(name.split(".")[0])
        assert doors is None or relative.startswith(doors), f"{relative} imports {name}; allowed in {doors}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_budgets(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MAX_FILE_LINES, f"{path} has {lines} lines: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}: {node.name} has {length} lines"


def loaded_after(*statements: str) -> set[str]:
    """Top-level libraries (and mpi4py.MPI) that a fresh interpreter holds after ``statements``."""
    code = "\n".join([*statements, "import sys", "print('\\nLOADED', *sys.modules)"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return set(result.stdout.rpartition("LOADED")[2].split())


HEAVY = {"mpi4py", "mpi4py.MPI", "cupy", "h5py", "torch", "pandas", "matplotlib"}


def test_import_loads_nothing_heavy() -> None:
    assert not loaded_after("import mpicomp") & (HEAVY | {"click", "rich"})


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["bench", "--help"], ["bench", "merge", "--help"], ["info", "--help"], ["schemes"],
     ["advise", "--help"], ["simulate", "--help"], ["slurm", "bench"], ["tune", "--help"],
     *(["train", app, "--help"] for app in ("logreg", "mlp", "ef-gdstar", "heat", "language", "recommend", "vision")),
     ["trace", "--help"], ["trace", "report", "--help"],
     *(["completion", shell] for shell in ("bash", "zsh", "fish"))],
    ids=" ".join,
)
def test_offline_commands_load_nothing_heavy(arguments: list[str]) -> None:
    run = f"try: main({arguments})\nexcept SystemExit as end: assert not end.code"
    assert not loaded_after("from mpicomp.cli import main", run) & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"]], ids=" ".join)
def test_help_loads_no_numpy(arguments: list[str]) -> None:
    run = f"try: main({arguments})\nexcept SystemExit as end: assert not end.code"
    assert "numpy" not in loaded_after("from mpicomp.cli import main", run)


def test_completion_of_commands_imports_no_command() -> None:
    code = "import sys; from mpicomp.cli import main\ntry: main([])\nfinally: sys.stderr.write(' '.join(sys.modules))"
    asked = {"_MPICOMP_COMPLETE": "bash_complete", "COMP_WORDS": "mpicomp be", "COMP_CWORD": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=300
    )
    assert "plain,bench" in result.stdout
    assert "mpicomp.cli.bench" not in result.stderr.split()


def test_import_is_quick() -> None:
    code = "import numpy, time; start = time.process_time(); import mpicomp; print(time.process_time() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(3)]
    assert min(times) < IMPORT_BUDGET_S
