"""SimGrid and our own replay agree where each node has its own link; where links are shared, only SimGrid knows."""

import glob
import os
import random
import sysconfig
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mpicomp.cli.simulate import _player, simulate
from mpicomp.errors import InvalidArgument, MpicompError
from mpicomp.simulate import Machine, Place, Wire, on_simgrid, program_of, replay
from mpicomp.simulate.models import named
from mpicomp.simulate.on_simgrid import Platform

DEBIANS = glob.glob(f"/usr/lib/python3/dist-packages/simgrid*{sysconfig.get_config_var('EXT_SUFFIX')}")
HEAD = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
CLUSTER = ('<cluster id="c" prefix="host-" suffix="" radical="0-15" speed="1Gf" bw="{bandwidth}Bps" lat="{latency}s" '
           'loopback_bw="{loopback}Bps" loopback_lat="1e-6s" sharing_policy="SPLITDUPLEX" {more}/>\n</platform>\n')
FAT_TREE = 'topology="FAT_TREE" topo_parameters="2;4,4;1,1;1,1"'  # four switches of four hosts share one link each
LATENCY, BANDWIDTH, WITHIN = 2e-6, 1e9, Wire(1e-6, 4e9, 5e-7)  # a route passes over two links


@pytest.fixture(autouse=True)
def module(tmp_path_factory, monkeypatch):
    """SimGrid's module: this environment's, or Debian's, without the packages beside it."""
    if find_spec("simgrid") is None:
        if not DEBIANS:
            pytest.skip("needs SimGrid's Python module (MPICOMP_APT=1 python tests/debian.py simgrid installs it)")
        folder = tmp_path_factory.mktemp("simgrid")
        (folder / Path(DEBIANS[0]).name).symlink_to(DEBIANS[0])
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))


def platform(folder, more="", **given):
    path = folder / "platform.xml"
    values = {"bandwidth": BANDWIDTH, "latency": LATENCY / 2, "loopback": WITHIN.bandwidth, **given}
    path.write_text(HEAD + CLUSTER.format(more=more, **values))
    return path


def machine(per_node=1):
    return Machine(Wire(LATENCY, BANDWIDTH, 1e-6), WITHIN, per_node, {"copy": 1e-9, "step": 1e-5})


@pytest.mark.parametrize("what, nodes, per_node, late, off", [
    ("ring", (2, 4, 8), 1, 1e-3, 1e-3), ("topk-global:density=0.01", (2, 4, 8), 1, 1e-3, 0.02),
    ("powersgd", (3, 5, 7), 1, 1e-3, 1e-3),  # of a vector: whole, by the ring
    # Messages of two steps that meet share a link in SimGrid, in ours they queue.
    ("halving_doubling", (2, 4, 8), 1, 0, 0.12), ("powersgd", (2, 4, 8), 1, 0, 0.12),
    ("scalecom:chunk=112", (2, 4, 8), 1, 1e-3, 0.05), ("ring", (2, 4, 8), 2, 1e-3, 0.05),
])  # fmt: skip
def test_alone_on_their_links_messages_arrive_when_our_own_model_says(tmp_path, what, nodes, per_node, late, off):
    """Play ranks that begin up to ``late`` seconds after each other."""
    size = random.choice(nodes) * per_node
    program = program_of(what, named(str(random.randint(100_000, 1_000_000))), Place(0, size, per_node))
    start = np.random.default_rng().uniform(0, late, size)
    own, theirs = (play(program, machine(per_node), start) for play in (replay, Platform(platform(tmp_path))))
    assert theirs.finish.max() == pytest.approx(own.finish.max(), rel=off)  # others wait until theirs have arrived
    np.testing.assert_allclose(theirs.local, own.local, rtol=off)


def test_where_switches_share_a_link_neighbours_are_better_partners(tmp_path):
    play = Platform(platform(tmp_path, FAT_TREE))
    names = ("ring", "halving_doubling")
    programs = [program_of(name, named("1000000"), Place(0, 16, 1)) for name in names]
    ring, halving = (play(one, machine()).finish.max() / replay(one, machine()).finish.max() for one in programs)
    assert ring == pytest.approx(1, abs=0.05) and 2 < halving <= 4


def test_the_command_plays_on_a_platform_and_says_so(tmp_path):
    described = tmp_path / "machine.toml"
    described.write_text(f"[between]\nlatency = 1.0\nbandwidth = {BANDWIDTH}\n")  # a second, which must not count
    arguments = ["-q", "-m", str(described), "--model", "100000", "--ranks", "4", "-a", "ring"]
    done = CliRunner().invoke(simulate, [*arguments, "--platform", str(platform(tmp_path))])
    assert done.exit_code == 0 and "by SimGrid; latencies and bandwidths of" in done.stdout
    step_ms = float(done.stdout.splitlines()[-3].split()[2])
    assert 6e5 / BANDWIDTH < step_ms / 1e3 < 0.01
    slower = CliRunner().invoke(simulate, [*arguments, "--platform", str(platform(tmp_path)),
                                           "--simgrid", "network/bandwidth-factor:0.5"])  # fmt: skip
    assert float(slower.stdout.splitlines()[-3].split()[2]) > 1.8 * step_ms


@pytest.mark.parametrize("wrong, why", [
    ({"more": 'radical2=""'}, "Parse error"), ({"size": 20}, "expected at least 20 hosts, for 1 rank.s. each, got 16"),
    ({"options": ("nix:1",)}, "Bad config key"),
])  # fmt: skip
def test_what_simgrid_refuses_is_an_error_that_says_why(tmp_path, wrong, why):
    play = Platform(platform(tmp_path, wrong.get("more", "")), wrong.get("options", ()))
    with pytest.raises(MpicompError, match=f"cannot play .* on {tmp_path}.*{why}"):
        play(program_of("ring", named("100"), Place(0, wrong.get("size", 4), 1)), machine())


def test_what_cannot_be_played_is_refused_first(tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"must be a platform file of SimGrid, got .*none\.xml"):
        Platform(tmp_path / "none.xml")
    path = platform(tmp_path)
    with pytest.raises(InvalidArgument, match="NAME:VALUE, such as network/model:SMPI, got 'SMPI'"):
        Platform(path, ("SMPI",))
    many = replace(program_of("ring", named("100"), Place(0, 2, 1)), place=Place(0, 1025, 1))
    with pytest.raises(InvalidArgument, match="at most 1024 ranks are played, got 1025"):
        Platform(path)(many, machine())
    with pytest.raises(InvalidArgument, match="--simgrid is for --platform FILE"):
        _player(None, ("network/model:SMPI",))
    monkeypatch.setattr(on_simgrid, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match="apt install python3-simgrid"):
        Platform(path)
