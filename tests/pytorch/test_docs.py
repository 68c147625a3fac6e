"""The examples of docs/pytorch.md and docs/examples/torch_model.py run as they stand, and learn."""

import re
import socket
from pathlib import Path

import needs_torch  # noqa: F401
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from mpicomp.errors import InvalidArgument

DOCS = Path(__file__).resolve().parents[2] / "docs"


def names_of(number, word="", page="pytorch.md"):
    """Return the names that an example of a page defines: of those with a word the one of this number."""
    examples = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    example = [one for one in examples if word in one][number]
    names = {}
    exec(compile(example, f"docs/{page}", "exec"), names)
    return names


def test_the_example_runs():
    assert names_of(0)["loss"].item() < 0.9  # ln 3 = 1.0986 at the beginning


def test_the_example_of_diloco_runs():
    names = names_of(0, page="diloco.md")
    assert names["diloco"].steps == 90


def test_the_example_with_ddp_sends_its_buckets_through_mpi(monkeypatch):
    with socket.create_server(("", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "")  # so that the page's is undone
    names = names_of(1)
    try:
        for _ in range(3):
            names["model"](torch.ones(4, 20)).sum().backward()
        assert {reducer.scheme.name for reducer in names["hook"].reducers.values()} == {"powersgd"}
    finally:
        names["hook"].close()
        torch.distributed.destroy_process_group()


def test_the_example_of_a_gan_keeps_the_discriminators_memory():
    """And is refused without ``no_sync``."""
    names = names_of(2)
    discriminator, other = names["discriminator"], names["optimizers"][1]
    assert names["step"] == 19 and sum(reducer.step for reducer in other.reducers.values()) == 20
    other.zero_grad()
    discriminator(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InvalidArgument, match="no_sync"):
        other.zero_grad()


def test_the_example_with_fsdp_saves_its_error_memory(monkeypatch, tmp_path):
    with socket.create_server(("", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.chdir(tmp_path)
    try:
        names = names_of(0, "fully_shard")
        assert names["loss"].item() < 1.0
        assert {reducer.scheme.name for reducer in names["compression"].reducers.values()} == {"topk"}
        metadata = FileSystemReader("saved").read_metadata().state_dict_metadata
        assert "compression.replica 0 shard 0" in metadata and "model.0.weight" in metadata
    finally:
        torch.distributed.destroy_process_group()


def test_the_example_of_the_backend_has_a_gradient():
    names = names_of(0, 'init_process_group("mpicomp")')
    assert all(one.grad is not None for one in names["model"].parameters())
    assert not torch.distributed.is_initialized()


def test_the_file_among_the_examples_learns():
    names = {}
    exec(compile((DOCS / "examples" / "torch_model.py").read_text(), "torch_model.py", "exec"), names)
    assert names["last"] < 0.6 * names["first"]
