"""The adviser: clear verdicts, break-even bandwidth, table and input."""

import json
import math
import random
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mpicomp.cli import advise as cli
from mpicomp.cli.root import root
from mpicomp.errors import InvalidArgument
from mpicomp.simulate import Machine, Place, Wire, predict, program_of
from mpicomp.simulate import machine as machines
from mpicomp.simulate import program as programs
from mpicomp.simulate.advice import advise, published, results
from mpicomp.simulate.models import BUILT_IN, from_document, named

KERNELS = {"copy": 2e-10, "top_k": 4e-9}  # a core's
SCHEMES = ("scalecom", "topk-global")


def machine(bandwidth, per_node=1):
    return Machine(Wire(3e-5, bandwidth), Wire(1e-6, 5e9), per_node, KERNELS)


def test_on_a_slow_network_compression_is_worth_it_and_on_a_fast_one_it_is_not():
    model = named("2M")
    slow, fast = (advise(model, machine(rate), 4, 0.02, SCHEMES) for rate in (12.5e6, 100e9))
    assert slow.compress and slow.lines[0].what == "scalecom" and slow.verdict.startswith("Compress: ")
    assert not fast.compress and fast.verdict.startswith("Do not compress here")
    for advice in (slow, fast):
        steps = [line.prediction.step for line in advice.lines]
        assert steps == sorted(steps)
        assert all(line.prediction.overlapped <= line.prediction.step for line in advice.lines)


def test_a_long_computation_hides_a_dense_exchange():
    advice = advise(named("1M"), machine(125e6), 4, 2.0, SCHEMES)
    assert not advice.compress
    beside = advise(named("1M"), machine(125e6), 4, 0.1, SCHEMES)
    assert beside.compress and "But not if the exchange overlaps the backward pass" in beside.verdict


@pytest.mark.parametrize("what", SCHEMES)
def test_at_the_break_even_bandwidth_both_take_the_same_time(what):
    model, here = named("2M"), machine(1e9)
    line = next(one for one in advise(model, here, 4, 0.0, SCHEMES).lines if one.what == what)
    assert 1e6 < line.break_even < 1e12
    there = here.faster(line.break_even / here.between.bandwidth)
    times = {name: predict(program_of(name, model, Place(0, 4, 1)), there, 0.0).exchange
             for name in ("ring", "halving_doubling", what)}
    assert times[what] == pytest.approx(min(times["ring"], times["halving_doubling"]), rel=1e-3)


def test_what_overlaps_is_seen_step_by_step():
    """Computing hides only the exchange of its own step: three silent steps do not wait for that of the fourth."""
    program = program_of("localsgd:period=4", named("1M"), machine(1e8).place(4))
    found = predict(program, machine(1e8), 0.01)
    assert found.overlapped == pytest.approx((3 * 0.01 + 0.01 / 3 + 4 * found.exchange) / 4)


def test_one_node_has_no_link_to_break_even_on():
    advice = advise(named("1M"), machine(1e9, per_node=4), 4, 0.0, ("scalecom",))
    assert all(line.break_even is None for line in advice.lines)
    assert "node_shared" in [line.what for line in advice.lines]


def test_what_goes_through_the_memory_of_a_node_is_counted():
    dense, half = (predict(program_of(what, named("1024K"), Place(0, 4, 4)), machine(1e9, 4), 0.0)
                   for what in ("node_shared", "half"))
    assert dense.bytes_sent == 0 < half.bytes_sent < 100  # ranks of a step agree by messages
    assert dense.bytes_shared == 2 * half.bytes_shared == 4_096_000 * (1 + 1 / 4)  # vector, slice of the sum


def test_a_scheme_that_cannot_be_recorded_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(programs, "FEW", 2)
    monkeypatch.setattr(programs, "MOST_EVENTS", 100)
    advice = advise(named("1M"), machine(1e9), 4, 0.0, ("scalecom", "topk-global"))
    assert [line.what for line in advice.lines if not line.dense] == ["topk-global"]  # whose ranks are alike
    assert len(advice.left_out) == 1 and advice.left_out[0].startswith("scalecom is left out: about 0 million events")
    with pytest.raises(InvalidArgument, match="scalecom is left out"):
        advise(named("1M"), machine(1e9), 4, 0.0, ("scalecom",))


def test_mpis_own_time_counts_where_it_was_measured():
    advice = advise(named("1M"), machine(1e9), 4, 0.01, ("scalecom",), native=1e-9)
    assert advice.best(dense=True).what == "native" and not advice.compress


def test_of_mpis_own_no_more_is_told_than_was_measured():
    advice = advise(named("1M"), machine(1e9), 4, 0.01, ("scalecom",), native=1e-3)
    native = next(line for line in advice.lines if line.what == "native")
    *_, local, sent, _, _ = cli.cells(native, native)
    row = next(row for row in cli.document(advice, named("1M"), machine(1e9), 0.01, {}, "", 0.0)["rows"]
               if row["what"] == "native")  # fmt: skip
    assert local == "-" and sent == "~5.722 MiB" and row["local"] is row["messages"] is None
    assert row["bytes_sent"] == 6_000_000


def test_published_results_all_name_their_source():
    table = results()
    for row in table["rows"]:
        assert row["source"] in table["sources"] and row["better"] in ("higher", "lower")
        assert row["dense"] > 0 < row["compressed"] and published(row["scheme"])
    assert published("topk-global:density=0.01") == published("topk") and not published("qsgd")
    assert any("76.47 -> 75.9 " in text and "Chen et al." in text for text in published("scalecom:chunk=96"))


@pytest.mark.parametrize(("name", "n"), [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("mobilenetv2", 3_504_872),
                                         ("lstm-66m", 66_034_000), ("transformer-base", 63_082_496)])
def test_models_have_the_known_numbers_of_parameters(name, n):
    model = BUILT_IN and named(name)
    assert model.n == n == model.tensors[-1][1] and model.flops > 0
    assert len({layer[0] for layer in model.layers}) == len(model.layers)


def test_flops_are_those_that_are_known():
    giga = {"resnet18": 1.8, "resnet50": 4.1, "mobilenetv2": 0.3}  # multiply-adds of an image
    for name, known in giga.items():
        assert named(name).flops / 2e9 == pytest.approx(known, rel=0.03)


def test_machines_are_read_as_written():
    wire = Wire(random.random(), 1 + random.random(), random.random(), 5.0)
    one = Machine(wire, wire, 3, {"copy": 1e-9}, machines.Jitter("gaussian", 0.5, 7))
    assert machines.load(json.loads(json.dumps(machines.dump(one))), "here") == one


@pytest.mark.parametrize(("change", "text"), [
    ({"between": {"latency": 1e-6}}, "between must give latency .* and bandwidth"),
    ({"between": {"latency": -1, "bandwidth": 1}}, r"between.latency must be a number from 0 to 1e\+06, got -1"),
    ({"between": {"latency": math.inf, "bandwidth": 1}}, r"latency must be a number from 0 to 1e\+06, got inf"),
    ({"between": {"latency": 10**400, "bandwidth": 1}}, r"between.latency must be a number from 0 to 1e\+06"),
    ({"between": {"latency": 1e308, "bandwidth": 1}}, r"latency must be a number from 0 to 1e\+06, got 1e\+308"),
    ({"between": {"latency": True, "bandwidth": 1}}, "latency must be a number .* got True"),
    ({"between": {"latency": 0, "bandwidth": 0}}, r"bandwidth must be a number from 1 to 1e\+18, got 0"),
    ({"between": {"latency": 0, "bandwidth": math.inf}}, r"bandwidth must be a number from 1 to 1e\+18, got inf"),
    ({"kernels": {"call": 1e308}}, r"kernels.call must be a number from 0 to 1e\+06, got 1e\+308"),
    ({"jitter": {"scale": 1e308}}, r"jitter.scale must be a number from 0 to 1e\+06, got 1e\+308"),
    ({"jitter": {"seed": True}}, "jitter.seed must be a whole number from 0 to .* got True"),
    ({"betwen": {}}, "unknown betwen"),
    ({"kernels": {"copi": 1}}, "unknown copi"),
    ({"kernels": 3}, "kernels must be a table, got 3"),
    ({"jitter": "gaussian"}, "jitter must be a table, got 'gaussian'"),
    ({"measured": None}, "measured must be a table, got None"),
    *[({"ranks_per_node": wrong}, f"ranks_per_node must be a whole number from 1 to 1048576, got {wrong}")
      for wrong in (0, True, 2.0, 99999999999999999999)],
    ({"jitter": {"distribution": "weibull"}}, "gaussian, exponential, got 'weibull'"),
    ({"version": 9}, "version 9"),
])  # fmt: skip
def test_bad_machines_are_refused(change, text):
    good = {"between": {"latency": 1e-6, "bandwidth": 1e9}}
    with pytest.raises(InvalidArgument, match=text):
        machines.load({**good, **change}, "machine.json")


@pytest.mark.parametrize("document", [{}, {"layers": []}, {"layers": [{"name": "a"}]}, [],
                                      *[
    {"layers": [{"name": "a", "shape": shape, "flops": flops}]} for shape, flops in
    (([0], 0), ("12", 0), ([100.9], 0), ([1], math.nan), ([1], -1), ([1], 10**400))]])  # fmt: skip
def test_bad_models_are_refused(document):
    with pytest.raises(InvalidArgument, match=r"model\.json"):
        from_document(document, "model.json")


def simulate(tmp_path, *arguments):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machines.dump(machine(1e9))))
    return CliRunner().invoke(root, ["simulate", "-q", "--machine", str(path), *arguments])


def test_the_command_prints_one_document(tmp_path):
    done = simulate(tmp_path, "--model", "1M", "--ranks", "2,4", "-s", "scalecom:chunk=64", "--compute-time", "0.01",
                    "--json", "--jitter", "exponential:0.001", "--plot", str(tmp_path / "steps.svg"))
    document = json.loads(done.output)
    assert [(row["what"], row["ranks"]) for row in document["rows"]] == [
        (what, size) for size in (2, 4) for what in ("halving_doubling", "scalecom:chunk=64")]
    assert all(row["step"] > row["compute"] == 0.01 for row in document["rows"])
    steps = [row["step"] for row in document["rows"]]
    assert [row["speed_up"] for row in document["rows"]] == [1.0, steps[0] / steps[1], 1.0, steps[2] / steps[3]]
    assert (tmp_path / "steps.svg").read_text().count("scalecom") >= 1


def test_simulating_loads_no_mpi(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text("[between]\nlatency = 1e-6\nbandwidth = 1e9\n")
    run = ["simulate", "-q", "-m", str(path), "--model", "1000", "--ranks", "3", "-s", "scalecom,topk"]
    code = f"from mpicomp.cli import main\ntry: main({run})\nexcept SystemExit as end: assert not end.code\n" \
           "import sys; assert not {'mpi4py', 'h5py', 'matplotlib', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "gives no kernels" in done.stdout and "scalecom" in done.stdout


def test_the_command_prints_a_table(tmp_path):
    layers = tmp_path / "model.json"
    layers.write_text(json.dumps({"layers": [{"name": "a", "shape": [100, 30], "flops": 6e3}]}))
    done = simulate(tmp_path, "--model", str(layers), "--ranks", "3", "--tflops", "1e-6")
    assert done.exit_code == 0 and "recorded: all 3 ranks" in done.output and "3000 elements" in done.output


def test_one_is_singular(tmp_path):
    done = simulate(tmp_path, "--model", "1", "--ranks", "1", "-s", "scalecom")
    assert done.exit_code == 0 and "recorded: all 1 rank\n" in done.output and "1: 1 element, " in done.output
    assert "scalecom, 1 rank: " in done.output and not re.search(r"\b1 (ranks|elements)", done.output)


@pytest.mark.parametrize(("arguments", "text"), [
    (("--model", "resnet19"), "no model 'resnet19' (did you mean 'resnet18'?): expected one of resnet18"),
    (("--model", "1M", "--ranks", "4,x"), "--ranks takes numbers"),
    (("--model", "1M", "--jitter", "gauss"), "--jitter takes gaussian:SECONDS"),
    (("--model", "1M", "--jitter", "gaussian:1e308"), "from 0 to 1e+06, got 'gaussian:1e308'"),
    (("--model", "1M", "--tflops", "1"), "give --compute-time"),
    (("--model", "1M", "--compute-time", "1", "--tflops", "1"), "--compute-time and --tflops say the same thing"),
    (("--model", "1M", "--compute-time", "nan"), "--compute-time must be a finite number, got nan"),
    (("--model", "resnet18", "--tflops", "inf"), "--tflops must be a finite number, got inf"),
    (("--model", "1M", "-a", "rng"), "unknown algorithm 'rng'"),
    (("--model", "json:loads"), "gives no PyTorch model"),
])  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path, arguments, text):
    done = simulate(tmp_path, *arguments)
    assert text in str(done.exception) and isinstance(done.exception, (InvalidArgument, SystemExit))


def test_a_pytorch_model_gives_its_parameters(tmp_path, monkeypatch):
    """Anything with ``named_parameters`` will do, so this needs no PyTorch."""
    (tmp_path / "mynet_of_a_test.py").write_text(
        "from types import SimpleNamespace as N\n"
        "def make(): return N(named_parameters=lambda: [('w', N(shape=(30, 20))), ('scale', N(shape=()))])\n"
    )
    monkeypatch.chdir(tmp_path)
    done = simulate(tmp_path, "--model", "mynet_of_a_test:make", "--ranks", "2", "--json")
    assert json.loads(done.output)["model"] == {"name": "mynet_of_a_test:make", "elements": 601, "flops": 0.0}
