"""``DistributedOptimizer`` on one rank is the plain optimizer, bit for bit, through the shortcut and without it."""

import copy
import io

import needs_torch  # noqa: F401
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpicomp import Reducer
from mpicomp.torch import DistributedOptimizer
from mpicomp.torch.flat import FlatBucket, plan

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    "groups": lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.2}, {"params": p[2:]}], lr=0.1, momentum=0.5),
}
WAYS = {"alone": {}, "buckets": {"algorithm": "ring", "bucket_bytes": 200}}  # an option means: no shortcut


class Net(nn.Module):
    """A layer used twice, one never used, one tied to another, one frozen."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.unused, self.tied, self.frozen = nn.Linear(3, 3), nn.Linear(5, 8), nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.to(dtype)

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(torch.tanh(self.first(self.frozen(x))))))
        return self.tied(self.last(x))


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def pair(comm, optimizer, way, dtype=torch.float32, **options):
    """A plain model with its optimizer, and its twin under ours."""
    plain = Net(dtype)
    ours = copy.deepcopy(plain)
    wrapped = DistributedOptimizer(
        OPTIMIZERS[optimizer](trained(ours)), ours.named_parameters(), comm, **WAYS[way], **options
    )
    return plain, OPTIMIZERS[optimizer](trained(plain)), ours, wrapped


def assert_same(plain, ours):
    for (name, a), b in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or torch.equal(a.grad, b.grad), name


def loss_of(model, x):
    return model(x).pow(2).mean()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_is_plain_pytorch(comm, optimizer, way, dtype):
    plain, theirs, ours, wrapped = pair(comm, optimizer, way, dtype)
    schedules = [torch.optim.lr_scheduler.StepLR(one, 2) for one in (theirs, wrapped)]
    for step in range(5):
        x = torch.randn(4, 5).to(dtype)
        for model, one, schedule in zip((plain, ours), (theirs, wrapped), schedules, strict=True):
            one.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, x).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            one.step()
            schedule.step()
        assert_same(plain, ours)


@pytest.mark.parametrize("way", WAYS)
def test_accumulates(comm, way):
    plain, theirs, ours, wrapped = pair(comm, "sgd", way)
    for _ in range(3):
        batches = torch.randn(3, 4, 5)
        theirs.zero_grad()
        for x in batches:
            loss_of(plain, x).backward()
        theirs.step()
        wrapped.zero_grad()
        with wrapped.no_sync():
            for x in batches[:-1]:
                loss_of(ours, x).backward()
        loss_of(ours, batches[-1]).backward()
        wrapped.step()
        assert_same(plain, ours)


@pytest.mark.parametrize("way", WAYS)
def test_loss_scaling(comm, way):
    """An overflow in the third step leaves it out and halves the scale, as in plain PyTorch."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12) for _ in range(2)]
    plain, theirs, ours, wrapped = pair(comm, "adam", way, grad_scaler=scalers[1])
    for step in range(5):
        x, large = torch.randn(4, 5), 1e38 if step == 2 else 1.0
        for model, one, scaler in zip((plain, ours), (theirs, wrapped), scalers, strict=True):
            one.zero_grad()
            scaler.scale(loss_of(model, x) * large).backward()
            scaler.unscale_(one)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(one)
            scaler.update()
        assert wrapped.skipped == (step == 2)
        assert scalers[0].get_scale() == scalers[1].get_scale() == (2.0**12 if step < 2 else 2.0**11)
        for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("way", WAYS)
def test_closure(comm, way):
    plain = Net()
    ours = copy.deepcopy(plain)
    theirs = torch.optim.LBFGS(trained(plain), lr=0.5, max_iter=4)
    inner = torch.optim.LBFGS(trained(ours), lr=0.5, max_iter=4)
    wrapped = DistributedOptimizer(inner, ours.named_parameters(), comm, **WAYS[way])
    x = torch.randn(4, 5)
    for model, one in ((plain, theirs), (ours, wrapped)):
        def closure(model=model, one=one):
            one.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            return loss

        for _ in range(2):
            one.step(closure)
    assert_same(plain, ours)


@pytest.mark.parametrize("way", WAYS)
def test_checkpointed_activations(comm, way):
    plain, theirs, ours, wrapped = pair(comm, "sgd", way)
    x = torch.randn(4, 5)
    for model, one in ((plain, theirs), (ours, wrapped)):
        checkpoint(model, x, use_reentrant=False).sum().backward()
        one.step()
    assert_same(plain, ours)


@pytest.mark.parametrize("scheme", ["topk:density=0.2", "powersgd:rank=1", "scalecom:chunk=5", "dgc:density=0.1"])
def test_is_the_reducer_on_named_gradients(comm, scheme):
    """In one bucket, the same bits as a Reducer of the model's gradients as a dictionary."""
    model = Net()
    optimizer = torch.optim.SGD(trained(model), lr=0.0)
    wrapped = DistributedOptimizer(optimizer, model.named_parameters(), comm, scheme, bucket_bytes=1 << 20)
    twin, reducer = copy.deepcopy(model), Reducer(comm, scheme)
    for _ in range(3):
        x = torch.randn(4, 5)
        wrapped.zero_grad()
        twin.zero_grad()
        loss_of(model, x).backward()
        loss_of(twin, x).backward()
        own = {name: p.grad if p.grad is not None else torch.zeros_like(p)
               for name, p in twin.named_parameters() if p.requires_grad}
        mean = reducer.reduce({name: gradient.numpy() for name, gradient in own.items()})
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert torch.equal(parameter.grad, torch.from_numpy(mean[name])), name
        wrapped.step()


def test_nothing_is_copied(comm):
    """Bucket, arrays and gradients are one memory; the reducer takes the arrays for one vector."""
    model = Net()
    bucket = FlatBucket(plan([(n, p) for n, p in model.named_parameters() if p.requires_grad], 1 << 20)[0])
    bucket.flat.copy_(torch.arange(bucket.flat.numel()))
    for name, view in zip(bucket.names, bucket.views, strict=True):
        assert bucket.arrays[name].ctypes.data == view.data_ptr()
        assert (bucket.arrays[name] == view.numpy()).all()
    reducer = Reducer(comm, "dense")
    reducer.reduce(bucket.arrays, out=bucket.arrays)
    layout = reducer._laid_out.bucket
    arrays = list(bucket.arrays.values())
    for vector in (layout.flatten(arrays)[0], layout.flat_view(arrays)):
        assert vector.ctypes.data == bucket.flat.data_ptr()
        assert vector.size == bucket.flat.numel()


def test_buckets_go_from_the_last_parameter_to_the_first():
    model = Net()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    buckets = plan(named, 150)
    names = [[name for name, _ in bucket] for bucket in buckets]
    assert [name for bucket in names[::-1] for name in bucket] == [name for name, _ in named]
    assert len(buckets) == 3
    assert len(plan(named, 1 << 20)) == 1


@pytest.mark.parametrize("scheme", ["topk:density=0.2", "powersgd:rank=1", "accordion:interval=2", "dense"])
def test_resumes_bit_for_bit(comm, scheme):
    """Through a file that torch.load reads without unpickling."""
    def make():
        model = Net()
        optimizer = DistributedOptimizer(OPTIMIZERS["sgd"](trained(model)), model.named_parameters(), comm, scheme,
                                         bucket_bytes=300, algorithm="native")
        return model, optimizer

    batches = torch.randn(6, 4, 5)

    def train(model, optimizer, batches):
        for x in batches:
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer, batches[:3])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, batches[3:])
    other, resumed = make()
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    train(other, resumed, batches[3:])
    assert_same(model, other)


def test_a_bucket_that_overflows_on_the_wire_does_not_move(comm):
    """float16 cannot hold this mean: momentum and decay leave its parameters alone, too; the other bucket steps."""
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = DistributedOptimizer(plain, model.named_parameters(), comm, "topk:density=0.5,values=float16",
                                     nonfinite="skip", bucket_bytes=4)
    first, last = model.parameters()
    for factor in (1.0, 1e6):
        before = first.detach().clone(), last.detach().clone()
        optimizer.zero_grad()
        (factor * first.sum() + last.sum()).backward()
        optimizer.step()
        assert torch.equal(first, before[0]) == (factor > 1)
        assert not torch.equal(last, before[1])
