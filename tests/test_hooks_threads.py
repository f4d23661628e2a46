"""Threads: backward passes, forward passes and whole trainings from threads of the user's."""

from __future__ import annotations

import threading

import pytest
import torch

import gradmedic as gm
from gradmedic import torch_hooks
from hooks_training import batches, bit_identical, cross_entropy, mlp, recorded_norms, sgd, train, weights_of
from hooks_training import single_thread as single_thread


def in_threads(*works) -> None:
    errors: list[BaseException] = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two threads wait for each other"
    assert errors == []


def test_backward_from_a_worker_thread():
    """R76: a backward call made by a worker thread belongs to the step that the main thread makes."""
    model = mlp()
    optimizer = sgd(model)
    losses, norms = [], []
    with gm.watch(model, optimizer, strict=True) as monitor:
        for x, y in batches(5):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            in_threads(loss.backward)
            losses.append(float(loss.detach()))
            norms.append({name: float(p.grad.double().norm()) for name, p in model.named_parameters()})
            optimizer.step()
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms


def test_steps_from_a_worker_thread():
    """R76: a training that runs in a worker thread is watched like one in the main thread."""
    plain, model = mlp(), mlp()
    losses, _ = train(plain, sgd(plain), batches(10))
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        in_threads(lambda: train(model, optimizer, batches(10)))
    assert bit_identical(weights_of(plain), weights_of(model))
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)


def test_forwards_from_four_threads():
    """R69: four threads run one watched model at once, in its first steps and later; each gets its own answer."""
    model = mlp()
    optimizer = sgd(model)
    x = batches(1, rows=64)[0][0]
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(3):
            expected = model(x)
            answers: list[torch.Tensor] = []
            in_threads(*[lambda answers=answers: answers.extend(model(x) for _ in range(20))] * 4)
            assert len(answers) == 80
            assert all(torch.equal(answer, expected) for answer in answers)
            train(model, optimizer, batches(2))
    assert monitor.run.steps.num_rows == 6


def test_two_trainings_in_two_threads():
    """R69: two models trained at once, each under its own monitor, have right gradients and bit-identical weights."""
    plain = [mlp(seed) for seed in (1, 2)]
    norms = [train(net, sgd(net), batches(30))[1] for net in plain]
    nets = [mlp(seed) for seed in (1, 2)]
    losses: list[list[float]] = [[], []]
    optimizers = [sgd(net) for net in nets]
    monitors = [gm.watch(net, optimizer, strict=True) for net, optimizer in zip(nets, optimizers, strict=True)]
    begun = threading.Barrier(2, timeout=30)

    def work(i: int) -> None:
        data = batches(30)
        losses[i] += train(nets[i], optimizers[i], data[:1])[0]
        begun.wait()
        losses[i] += train(nets[i], optimizers[i], data[1:])[0]

    in_threads(lambda: work(0), lambda: work(1))
    for monitor in monitors:
        monitor.close()
    for i in range(2):
        assert bit_identical(weights_of(plain[i]), weights_of(nets[i]))
        assert [pytest.approx(row) for row in recorded_norms(monitors[i].run)] == norms[i]
        # Who steps what is known after the first step; from then on each has its own loss.
        assert monitors[i].run.series("loss")[1:].tolist() == pytest.approx(losses[i][1:])
        assert not monitors[i].run.series("stale_grads").any()
    assert torch_hooks.attached() == ()


def test_closing_and_reading_while_another_thread_trains():
    """R34: closing, and reading frames and findings, from one thread while another trains: no deadlock, no error."""
    model = mlp()
    optimizer = sgd(model)
    for _ in range(10):
        monitor = gm.watch(model, optimizer, strict=True)
        started = threading.Event()

        def read(monitor=monitor, started=started):
            started.wait(10)
            for _ in range(5):
                _ = monitor.latest, monitor.findings, monitor.overhead
            monitor.close()

        def work(started=started):
            started.set()
            train(model, optimizer, batches(20, rows=2))

        in_threads(work, read)
        assert monitor.run.problems == []
    assert torch_hooks.attached() == ()


def test_attach_and_detach_from_many_threads():
    """R34: attaching and detaching at the same time in several threads leaves no patch behind."""
    before = torch.autograd.backward

    def work():
        for _ in range(10):
            net = mlp()
            with gm.watch(net, sgd(net), strict=True):
                pass

    in_threads(work, work, work)
    assert torch.autograd.backward is before
    assert torch_hooks.attached() == ()
