"""What watching costs: no wait for a device between reports, launches that do not grow with tensors, flat memory."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradmedic as gm
from gradmedic.probes.pending import Parcel
from hooks_training import batches, cross_entropy, mlp, sgd, train
from hooks_training import single_thread as single_thread

#: Operations that read a device's values on the host.
SYNCS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "unique", "masked_select", "item")


class Counter(TorchDispatchMode):
    """Counts kernels, host reads and copies between devices; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ("detach", "alias", "lift_fresh"):
            self.kernels[name] = self.kernels.get(name, 0) + 1
        return func(*args, **(kwargs or {}))

    @property
    def syncs(self) -> int:
        return sum(self.kernels.get(name, 0) for name in SYNCS)

    @property
    def launches(self) -> int:
        return sum(self.kernels.values())


class Many(nn.Module):
    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(3, 5)) for _ in range(tensors))


class Quiet(torch.optim.Optimizer):
    """Steps with one foreach operation, and reads nothing."""

    def __init__(self, parameters) -> None:
        super().__init__(list(parameters), {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        held = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        torch._foreach_add_(held, [p.grad for p in held], alpha=-0.1)


def count_steps(tensors: int, every: int, steps: list[int]) -> tuple[list[Counter], list[int]]:
    """Return what `optimizer.step()` ran at the steps asked for, and the copies to the host that it made."""
    model = Many(tensors)
    optimizer = Quiet(model.parameters())
    counters: list[Counter] = []
    copies: list[int] = []
    sent: list[int] = []
    gradients = [torch.full_like(p, 0.5) for p in model.weights]
    original = Parcel.send

    def send(self, copies):
        sent.append(len(self._tensors))
        return original(self, copies)

    Parcel.send = send
    try:
        with gm.watch(model, optimizer, every=every, backend="torch", strict=True):
            for step in range(max(steps) + 1):
                optimizer.zero_grad()
                before = len(sent)
                for p, gradient in zip(model.weights, gradients, strict=True):
                    p.grad = gradient
                with Counter() as counter:
                    optimizer.step()
                if step in steps:
                    counters.append(counter)
                    copies.append(len(sent) - before)
    finally:
        Parcel.send = original
    return counters, copies


@pytest.fixture(scope="module")
def few_and_many():
    """What steps 7, 8, 12 and 13 ran and copied with 20 and with 600 tensors; the 12th is recorded."""
    return [count_steps(tensors, 6, [7, 8, 12, 13]) for tensors in (20, 600)]


def test_no_host_sync_between_reports_and_one_at_a_report(few_and_many):
    """R40: steps that are not recorded read nothing on the host; recorded ones copy once."""
    for counters, copies in few_and_many:
        assert [counter.syncs for counter in counters] == [0] * 4
        assert copies == [0, 0, 1, 0]


def test_launches_do_not_grow_with_the_number_of_tensors(few_and_many):
    """R40: a step over 600 tensors launches about as many kernels as one over 20."""
    (few, _), (many, _) = few_and_many
    for one, other in zip(few, many, strict=True):
        assert other.launches <= one.launches + 5
    assert few[1].launches < 60


def test_backward_reads_nothing_on_the_host(monkeypatch):
    """R40: what we do around a backward call reads no value, and launches the same few kernels for every size.

    A loss on the CPU is read, where that waits for nothing (`Startle`); the tensors here stand in for a device's.
    """
    monkeypatch.setattr("gradmedic.probes.startle.Startle.notice", lambda self, roots: False)
    launches = []
    for tensors in (20, 600):
        model = Many(tensors)
        optimizer = Quiet(model.parameters())
        with gm.watch(model, optimizer, every=10, backend="torch", strict=True) as monitor:
            watcher = monitor._watcher
            for _ in range(6):
                optimizer.zero_grad()
                loss = torch.stack(torch._foreach_norm(list(model.weights))).sum()
                with Counter() as counter:
                    watcher.before_backward([loss], [])
                assert counter.syncs == 0
                for p in model.weights:
                    p.grad = torch.full_like(p, 0.5)
                with Counter() as after:
                    watcher.after_backward(True)
                assert after.launches == 0
                optimizer.step()
        launches.append(counter.launches)
    assert launches[0] == launches[1] <= 5


class Reads(TorchFunctionMode):
    """Counts the Python-level ways of reading a tensor on the host, which a dispatch mode does not see."""

    NAMES = frozenset({"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__array__", "__index__"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.NAMES:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_no_step_between_reports_reads_a_tensor(monkeypatch):
    """R40: through forward, backward, clip and step, no tensor becomes a number, list or array between reports."""
    monkeypatch.setattr("gradmedic.ledger._BACKLOG", 64)  # what has arrived in between is read: see tests/device
    model = mlp()
    optimizer = Quiet(model.parameters())
    with gm.watch(model, optimizer, every=1000, backend="torch", transform=None, strict=True):
        for step, (x, y) in enumerate(batches(30)):
            optimizer.zero_grad()
            with Reads() as reads:
                loss = cross_entropy(model, x, y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
            if step > 12:  # the look at the first steps is over
                assert reads.found == []


def test_the_backlog_is_bounded():
    """R40: frames of unrecorded steps wait on the device for at most 8 steps, and all of them arrive, in order."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, every=1000, backend="torch", strict=True) as monitor:
        largest = 0
        losses = []
        for data in batches(150):
            losses += train(model, optimizer, [data])[0]
            largest = max(largest, monitor._ledger._transit.unsent)
    assert largest == 7
    assert monitor.run.series("step").tolist() == list(range(150))
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)


def test_backends_agree():
    """R40: the device path on CPU tensors gives what the native one gives, frame by frame."""
    frames = []
    for backend in ("auto", "torch", "reference"):
        model = mlp()
        optimizer = sgd(model)
        with gm.watch(model, optimizer, backend=backend, strict=True) as monitor:
            train(model, optimizer, batches(4))
        frames.append(monitor.run.frames())
    for others in zip(*(list(each) for each in frames), strict=True):
        first = others[0]
        for other in others[1:]:
            assert (other.loss, other.grad_norm) == pytest.approx((first.loss, first.grad_norm), rel=1e-6)
            for column in ("norm", "max_abs", "mean", "std", "update_norm", "weight_norm", "unchanged_frac"):
                torch.testing.assert_close(
                    torch.tensor(other.tensors.column(column)),
                    torch.tensor(first.tensors.column(column)),
                    rtol=1e-6,
                    atol=1e-9,
                )


def test_nonfinite_detection_costs_no_further_pass():
    """R79: with the norms at hand, a non-finite gradient is told without another operation on the gradients."""
    counts = []
    for value in (0.5, float("nan")):
        model = Many(50)
        optimizer = Quiet(model.parameters())
        with gm.watch(model, optimizer, every=100, backend="torch", strict=True) as monitor:
            for step in range(3):
                for p in model.weights:
                    p.grad = torch.full_like(p, value if step == 2 else 0.5)
                with Counter() as counter:
                    optimizer.step()
            assert bool(monitor.latest.nonfinite) == (value != value)
        counts.append(counter.kernels)
    assert counts[0] == counts[1]


def test_overhead_is_measured_and_reported():
    """R79: the monitor reports its own cost: in total, as a share, and in each frame."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(20))
    seconds, share, syncs = monitor.overhead
    frames = list(monitor.run.frames())
    assert 0 < seconds < 5
    assert 0 < share < 1
    assert syncs == 0
    assert all(frame.overhead_seconds > 0 for frame in frames)
    assert sum(frame.overhead_seconds for frame in frames) <= seconds


# -- memory -----------------------------------------------------------------------------------


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def own_objects() -> int:
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return sum(str(kind.__module__).partition(".")[0] in ("gradmedic", "pyarrow", "numpy") for kind in kinds)


def loop(model, optimizer, data) -> None:
    for x, y in data:
        optimizer.zero_grad()
        cross_entropy(model, x, y).backward()
        optimizer.step()


@pytest.mark.slow
def test_memory_is_flat_over_hundreds_of_steps(tmp_path):
    """R29: once the windows are full, 400 further steps leave not one tensor, and no object, more behind."""
    model = mlp()
    optimizer = sgd(model)
    data = batches(20)
    with gm.watch(model, optimizer, record=tmp_path / "run", budget="1MB", modules_every=10, strict=True) as monitor:
        loop(model, optimizer, data * 20)
        _ = monitor.run
        tensors, objects = live_tensors(), own_objects()
        loop(model, optimizer, data * 20)
        _ = monitor.run
        assert live_tensors() <= tensors + 4
        assert own_objects() <= objects + 60  # less than one for every sixth step


def test_our_own_allocations_are_flat(tmp_path):
    """R29: what our code has allocated does not grow from step 150 to step 200."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, record=tmp_path / "run", budget="1MB", strict=True) as monitor:
        loop(model, optimizer, batches(100, rows=2))
        _ = monitor.run
        tracemalloc.start()
        loop(model, optimizer, batches(50, rows=2))
        gc.collect()
        first = tracemalloc.take_snapshot()
        loop(model, optimizer, batches(50, rows=2))
        gc.collect()
        second = tracemalloc.take_snapshot()
        tracemalloc.stop()
    grown = sum(
        entry.size_diff for entry in second.compare_to(first, "filename") if "gradmedic" in str(entry.traceback)
    )
    assert grown < 150_000


def storages():
    """Bytes of every plain CPU storage that a live tensor has, by address."""
    gc.collect()
    return {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if type(each) in (torch.Tensor, nn.Parameter) and each.device.type == "cpu" and each.layout == torch.strided
    }


def test_no_buffer_in_proportion_to_the_gradients():
    """R29: with a model of 8 MB, what we hold between steps stays far below one copy of its gradients."""
    model = nn.Linear(1024, 2048, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for backend in ("auto", "torch"):
        before = storages()  # other tests of this process may have left some
        with gm.watch(model, optimizer, backend=backend, strict=True):
            for _ in range(4):
                optimizer.zero_grad(set_to_none=False)
                model(torch.ones(2, 1024)).sum().backward()
                optimizer.step()
            known = {*before, model.weight.data_ptr(), model.weight.grad.data_ptr()}
            extra = sum(size for pointer, size in storages().items() if pointer not in known)
            assert extra < 2_000_000


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_graph_is_not_kept_alive(backend):
    """R29: activations, losses, gradients and roots die with the user's own references, unflushed frames or not."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, every=10, backend=backend, strict=True) as monitor:
        for x, y in batches(50):
            optimizer.zero_grad()
            hidden = model[1](model[0](x))
            loss = F.cross_entropy(model[2](hidden), y)
            loss.backward()
            monitor.log(mine=loss)
            gradient = model[0].weight.grad
            optimizer.step()
            monitor.log(after=hidden.sum())
            held = [weakref.ref(each) for each in (hidden, loss, gradient)]
            optimizer.zero_grad()
            del hidden, loss, gradient
            assert [reference() for reference in held] == [None] * len(held)


def test_gradient_penalty_leaves_memory_flat():
    """R53: double backward does not leak: 30 further steps leave no tensor behind."""

    def penalised(model, x, y):
        x = x.clone().requires_grad_()
        out = model(x)
        (inner,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + inner.square().sum()

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(3):
            train(model, optimizer, batches(30), penalised)
        _ = monitor.run
        before = live_tensors()
        train(model, optimizer, batches(30), penalised)
        _ = monitor.run
        # Without us, too, the last step's double backward leaves a tensor for each parameter behind.
        assert live_tensors() <= before + 8


def test_many_tensors_stay_within_the_budget_at_a_steady_pace(tmp_path):
    """R58: 1,000 tensors, recorded in full at each of 100 steps: bytes within the budget, time per step constant."""
    import time

    model = Many(1000)
    optimizer = Quiet(model.parameters())
    took: list[float] = []
    with gm.watch(model, optimizer, record=tmp_path / "run", budget="1MB", strict=True):
        for _ in range(100):
            for p in model.weights:
                p.grad = torch.randn(3, 5)
            began = time.process_time()
            optimizer.step()
            took.append(time.process_time() - began)
    assert sum(file.stat().st_size for file in (tmp_path / "run").iterdir()) <= 1 << 20
    run = gm.open_run(tmp_path / "run")
    assert run.steps.num_rows == 100
    assert sorted(took[70:])[15] < 3 * sorted(took[20:50])[15]
