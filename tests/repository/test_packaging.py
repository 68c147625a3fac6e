"""Recipes of other packagers, pyproject.toml and CITATION.cff agree with setup.py: version and requirements."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import setuptools

import mpicomp

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "packaging"
NEEDS = re.compile(r"([A-Za-z0-9_-]+) *>= *([0-9.]+)")


@pytest.fixture(scope="module")
def said():
    """Arguments that setup.py passes to setuptools."""
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(setuptools, "setup", lambda **words: told.update(words))
        runpy.run_path(str(ROOT / "setup.py"))
    return told


@pytest.fixture(scope="module")
def required(said):
    """Names and lowest versions of what an installed mpicomp needs."""
    return dict(NEEDS.fullmatch(text).groups() for text in said["install_requires"])


@pytest.fixture(scope="module")
def built_with():
    """Names and lowest versions of the requirements of a build, from pyproject.toml."""
    text = re.search(r"^requires = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    return dict(found.groups() for one in ast.literal_eval(text) if (found := NEEDS.fullmatch(one)))


def spack_calls():
    """The words of Spack's recipe and their texts: (word, first text)."""
    tree = ast.parse((RECIPES / "spack" / "package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    return [(call.func.id, call.args[0].value) for call in calls]


def test_the_version_stands_in_one_place(said):
    assert said["version"] == mpicomp.__version__
    assert ("version", mpicomp.__version__) in spack_calls()
    assert f"\nversion: {mpicomp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    conda = (RECIPES / "conda" / "meta.yaml").read_text()
    assert mpicomp.__version__ not in conda
    source, pattern = re.search(r'load_file="(.+?)", regex_pattern=\'(.+?)\'', conda).groups()
    assert re.search(pattern, (RECIPES / "conda" / source).read_text())[1] == mpicomp.__version__


def test_spack_requires_the_same(said, required, built_with):
    needs = dict(text.split("@") for word, text in spack_calls() if word == "depends_on" and "@" in text)
    for name, least in required.items():
        assert needs[f"py-{name}"] == f"{least}:"
    assert needs["python"] == f"{said['python_requires'].removeprefix('>=')}:"
    assert built_with.keys() == {"pybind11", "setuptools"}
    for name, least in built_with.items():
        assert needs[f"py-{name}"] == f"{least}:"


def test_conda_requires_the_same(said, required, built_with):
    lines = re.findall(r"^    - (.+)$", (RECIPES / "conda" / "meta.yaml").read_text(), re.MULTILINE)
    needs = dict(found.groups() for line in lines if (found := NEEDS.fullmatch(line)))
    assert f">={needs.pop('python')}" == said["python_requires"]
    assert needs == required | built_with


def test_wheels_are_built_for_every_python_from_the_lowest_on(said):
    config = (RECIPES / "cibuildwheel.toml").read_text()
    minors = [int(minor) for minor in re.findall(r"cp3(\d+)-", config)]
    assert minors == list(range(int(said["python_requires"].removeprefix(">=3.")), minors[-1] + 1))


def test_everything_the_package_reads_is_packed(said):
    """Files that are no Python and that the installed package opens: each falls under a rule of package_data."""
    folders = {package: ROOT / said["package_dir"].get(package, package.replace(".", "/"))
               for package in said["packages"]}
    packed = {path for package, patterns in said["package_data"].items() for pattern in patterns
              for path in folders[package].glob(pattern)}
    there = {path for folder in folders.values() for path in folder.rglob("*")
             if path.suffix in (".cu", ".cuh", ".json", ".pyi", ".sbatch", ".typed", ".sh")}
    assert there and there <= packed
    assert {path.parent for path in (ROOT / "mpicomp").rglob("__init__.py")} <= set(folders.values())


def test_source_archives_carry_no_tests(tmp_path):
    """Nor does the list of sources inside them."""
    for folder in ("apps", "mpicomp", "slurm", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / file, tmp_path)
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = tmp_path.glob("dist/*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
        listed = packed.extractfile(f"{archive.name.removesuffix('.tar.gz')}/mpicomp.egg-info/SOURCES.txt").read()
    assert {"setup.py", "pyproject.toml", "apps/logreg.py", "mpicomp/ops/cpu/module.cpp"} <= names
    assert names - {"PKG-INFO", "setup.cfg"} == set(listed.decode().split())
    assert not [name for name in names if name.startswith("tests/")]


def test_checkers_of_types_are_told_every_name():
    """Type checkers see the names in __all__; at run time the names come from another table."""
    assert set(mpicomp.trace.__all__) == set(mpicomp.trace._HOME)
    assert set(mpicomp.__all__) == {"__version__", *mpicomp._HOME, *mpicomp._MODULES}
