"""Attaching and detaching: complete, repeatable, and without a trace in what it leaves behind."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic import torch_hooks
from hooks_training import batches, bit_identical, cross_entropy, mlp, module_hooks, sgd, train, weights_of
from hooks_training import single_thread as single_thread

ORIGINALS = {
    "backward": (torch.autograd, "backward"),
    "scale": (torch.amp.GradScaler, "scale"),
    "unscale_": (torch.amp.GradScaler, "unscale_"),
    "step": (torch.amp.GradScaler, "step"),
    "clip": (torch.nn.utils, "clip_grad_norm_"),
}


def patches() -> dict[str, object]:
    return {key: getattr(owner, name) for key, (owner, name) in ORIGINALS.items()}


def inner_functions() -> list[object]:
    outer = torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.nn.utils.clip_grad_value_
    return [cell.cell_contents for function in outer for cell in function.__closure__]


def optimizer_hooks() -> int:
    from torch.optim import optimizer as home

    return len(home._global_optimizer_pre_hooks) + len(home._global_optimizer_post_hooks)


def test_weights_are_bit_identical_to_an_unwatched_run():
    """R34: watching alone changes no weight, no random number and no state dict key."""
    plain, watched = mlp(), mlp()
    train(plain, sgd(plain), batches(12))
    before = torch.get_rng_state()
    optimizer = sgd(watched)
    with gm.watch(watched, optimizer, strict=True):
        train(watched, optimizer, batches(12))
    assert torch.equal(torch.get_rng_state(), before)
    assert bit_identical(weights_of(plain), weights_of(watched))
    assert list(watched.state_dict()) == list(plain.state_dict())


def test_everything_is_removed_on_close():
    """R34: after detach zero of our hooks and patches remain."""
    functions, inner, hooks = patches(), inner_functions(), optimizer_hooks()
    model = mlp()
    monitor = gm.watch(model, sgd(model), strict=True)
    assert patches() != functions
    monitor.close()
    assert patches() == functions
    assert inner_functions() == inner
    assert optimizer_hooks() == hooks
    assert module_hooks(model) == 0
    assert torch_hooks.attached() == ()


def test_attach_and_detach_a_hundred_times():
    """R34: attach/detach 100x, interleaved with steps, with hooks of the user's own: those survive, in their order."""
    model, plain = mlp(), mlp()
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("first"))
    model[0].register_forward_hook(lambda *_: calls.append("second"))
    model.register_forward_pre_hook(lambda *_: calls.append("pre"))
    optimizer, other = sgd(model), sgd(plain)
    functions = patches()
    for data in batches(100, rows=4):
        with gm.watch(model, optimizer, strict=True) as monitor:
            train(model, optimizer, [data])
        assert monitor.latest.step == 0
        train(plain, other, [data])
    assert bit_identical(weights_of(model), weights_of(plain))
    assert module_hooks(model) == 3
    assert patches() == functions
    assert calls[:3] == ["pre", "first", "second"]
    assert len(calls) == 300
    x = batches(1)[0][0]
    assert torch.equal(model(x), plain(x))


def test_detach_is_idempotent():
    """R34: closing twice, and closing after the with block, does nothing."""
    model = mlp()
    with gm.watch(model, sgd(model), strict=True) as monitor:
        monitor.close()
        monitor.close("again")
    monitor.close()
    assert [event["reason"] for event in monitor.run.events if event["kind"] == "end"] == ["finished"]


@pytest.mark.parametrize("where", ["sink", "on_finding"])
def test_detach_inside_a_callback(where):
    """R34: detach is safe inside a callback, and the step in which it happened is in the record."""
    model = mlp()
    optimizer = sgd(model)

    class Closer:
        def emit(self, frame):
            if where == "sink" and frame.step == 2:
                monitor.close("enough")

        def emit_finding(self, finding): ...

        def close(self): ...

    monitor = gm.watch(
        model,
        optimizer,
        sinks=[Closer()],
        limits=1e-9 if where == "on_finding" else None,
        on_finding=lambda finding: monitor.close("enough"),
        strict=True,
    )
    train(model, optimizer, batches(6))
    assert torch_hooks.attached() == ()
    assert monitor.run.steps.num_rows == (3 if where == "sink" else 1)
    assert monitor.run.problems == []
    assert not [event for event in monitor.run.events if event["kind"] == "error"]


def test_detach_while_a_backward_pass_runs():
    """R34: a monitor closed from a tensor hook, in the middle of a backward pass, leaves training as it is."""
    model, plain = mlp(), mlp()
    optimizer = sgd(model)
    monitor = gm.watch(model, optimizer, strict=True)
    x, y = batches(1)[0]
    hidden = model[1](model[0](x))
    hidden.register_hook(lambda _: monitor.close())
    torch.nn.functional.cross_entropy(model[2](hidden), y).backward()
    optimizer.step()
    train(plain, sgd(plain), [(x, y)])
    assert bit_identical(weights_of(model), weights_of(plain))
    assert torch_hooks.attached() == ()


def test_attaching_twice_replaces():
    """R33: a second attachment to one model replaces the first; steps are recorded once."""
    model = mlp()
    optimizer = sgd(model)
    first = gm.watch(model, optimizer, strict=True)
    hooks = module_hooks(model)
    train(model, optimizer, batches(2))
    second = gm.watch(model, optimizer, strict=True)
    train(model, optimizer, batches(3))
    assert len(torch_hooks.attached()) == 1
    assert module_hooks(model) <= hooks
    assert (first.run.steps.num_rows, second.run.steps.num_rows) == (2, 3)
    second.close()


def test_a_lost_handle_is_replaced():
    """R33: a notebook cell that is run again, its handle lost, does not stack listeners or hooks."""
    model = mlp()
    optimizer = sgd(model)
    for _ in range(10):
        gm.watch(model, optimizer, strict=True)
        assert len(torch_hooks.attached()) == 1
        assert module_hooks(model) == 4  # the inputs, and one for each module of the first steps
        train(model, optimizer, batches(1))
    gm.watch(model, optimizer, strict=True).close()
    assert torch_hooks.attached() == ()


def test_a_lost_handle_goes_on_recording(tmp_path):
    """R33: whoever drops the monitor's handle still gets the record."""
    model = mlp()
    optimizer = sgd(model)
    gm.watch(model, optimizer, record=tmp_path / "run", strict=True)
    gc.collect()
    train(model, optimizer, batches(5))
    gm.watch(model, optimizer).close()  # ends the first one
    assert gm.open_run(tmp_path / "run").steps.num_rows == 5


def test_a_cell_that_makes_the_model_anew_does_not_stack_listeners():
    """R33: models that are gone take their monitors along, so that the cost does not grow with each re-run."""
    for _ in range(5):
        model = mlp()
        optimizer = sgd(model)
        monitor = gm.watch(model, optimizer, strict=True)
        train(model, optimizer, batches(2))
    gc.collect()
    train(model, optimizer, batches(1))
    assert len(torch_hooks.attached()) == 1
    assert monitor.run.steps.num_rows == 3
    monitor.close()


def test_wrapper_and_inner_model_are_one():
    """R33: attaching to a wrapper of a watched model replaces the attachment to the model, and the other way round."""
    model = mlp()
    optimizer = sgd(model)
    wrapper = torch.nn.DataParallel(model)
    gm.watch(model, optimizer, strict=True)
    gm.watch(wrapper, optimizer, strict=True)
    assert len(torch_hooks.attached()) == 1
    monitor = gm.watch(model, optimizer, strict=True)
    assert len(torch_hooks.attached()) == 1
    monitor.close()


def test_a_refused_attachment_leaves_the_former_one_at_work(tmp_path):
    """R33: a watch call that raises has no effect."""
    model = mlp()
    optimizer = sgd(model)
    monitor = gm.watch(model, optimizer, record=tmp_path / "run", strict=True)
    train(model, optimizer, batches(1))
    with pytest.raises(gm.InputError, match="already holds a run"):
        gm.watch(model, optimizer, record=tmp_path / "run", strict=True)
    with pytest.raises(gm.InputError, match="every"):
        gm.watch(model, optimizer, every=0)
    train(model, optimizer, batches(1))
    assert monitor.run.steps.num_rows == 2
    monitor.close()
    assert torch_hooks.attached() == ()


def test_two_monitors_on_two_models():
    """R34: closing one of two monitors leaves the other at work."""
    one, other = mlp(1), mlp(2)
    first, second = sgd(one), sgd(other)
    watch_one = gm.watch(one, first, strict=True)
    watch_other = gm.watch(other, second, strict=True)
    losses: list[list[float]] = [[], []]
    for data in batches(3):
        losses[0] += train(one, first, [data])[0]
        losses[1] += train(other, second, [data])[0]
    watch_one.close()
    losses[1] += train(other, second, batches(2))[0]
    watch_other.close()
    assert watch_one.run.series("loss").tolist() == pytest.approx(losses[0])
    assert watch_other.run.series("loss").tolist() == pytest.approx(losses[1])


def test_others_who_patched_after_us_keep_their_patch(monkeypatch):
    """R34: a function that someone wrapped while we were attached stays wrapped when we leave."""
    model = mlp()
    optimizer = sgd(model)
    original = torch.autograd.backward
    monitor = gm.watch(model, optimizer, strict=True)
    ours = torch.autograd.backward
    calls: list[int] = []

    def theirs(*args, **kwargs):
        calls.append(1)
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    train(model, optimizer, batches(2))
    monitor.close()
    train(model, optimizer, batches(2))
    assert torch.autograd.backward is theirs
    assert len(calls) == 4
    assert monitor.run.steps.num_rows == 2
    monkeypatch.undo()  # puts our wrapper back, whose time is over
    assert torch.autograd.backward is ours
    with gm.watch(model, optimizer, strict=True) as monitor:
        losses, _ = train(model, optimizer, batches(2))
    torch.autograd.backward = original
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)


def test_the_model_is_freed_at_once_after_detach():
    """R54: with the garbage collector off, nothing of ours keeps the model or a parameter alive after close."""
    model = mlp()
    optimizer = sgd(model)
    gc.collect()
    gc.disable()
    try:
        monitor = gm.watch(model, optimizer, strict=True)
        train(model, optimizer, batches(5))
        monitor.close()
        held = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters())]
        optimizer.zero_grad()
        del model, optimizer
        assert [reference() for reference in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_the_model_is_collectable_without_detach(steps):
    """R54: a watched model that is dropped is collectable; the monitor holds it weakly."""
    model = mlp()
    optimizer = sgd(model)
    monitor = gm.watch(model, optimizer, strict=True)
    train(model, optimizer, batches(steps))
    held = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters()), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)
    assert monitor.run.steps.num_rows == steps
    monitor.close()


def test_a_container_made_for_the_call_may_go():
    """R54: names survive a container that was made only to be watched and died at once."""
    encoder, decoder = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    monitor = gm.watch(nn.ModuleDict({"encoder": encoder, "decoder": decoder}), optimizer, strict=True)
    gc.collect()
    for x, y in batches(60):
        optimizer.zero_grad()
        cross_entropy(lambda x: decoder(encoder(x).relu()), x, y).backward()
        optimizer.step()
    monitor.close()
    assert monitor.run.matrix("norm")[1] == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    assert "GM105" not in {finding.code for finding in monitor.diagnose()}


def test_the_record_ends_when_the_block_is_left_by_a_keyboard_interrupt(tmp_path):
    """R34: Ctrl-C inside the with block detaches everything and leaves a complete record."""
    model = mlp()
    optimizer = sgd(model)

    def interrupted() -> None:
        with gm.watch(model, optimizer, record=tmp_path / "run", strict=True):
            train(model, optimizer, batches(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    run = gm.open_run(tmp_path / "run")
    assert run.steps.num_rows == 3
    assert run.events[-1]["reason"] == "interrupted"
    assert run.problems == []
    assert torch_hooks.attached() == ()


def test_the_hooks_are_gone_after_the_first_steps():
    """R34: the look at the first steps leaves no module hook behind, while watching goes on."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True):
        train(model, optimizer, batches(3))
        assert module_hooks(model) == 0
        assert module_hooks(copy.deepcopy(model)) == 0
        train(model, optimizer, batches(2))
        assert module_hooks(model) == 0
