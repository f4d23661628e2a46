"""Every block of code in docs/recipes.md runs, and records what a plain loop computes by itself."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import torch
from plain_loops import Step, assert_same, cross_entropy, make_loader, make_net, norm_of, own_errors, plain_loop
from torch import nn

import gradmedic as gm

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
BLOCKS = {title: re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) for title, text in SECTIONS.items()}
CRITERION = nn.CrossEntropyLoss()


def names_of_the_reader(lr=0.1, **changes):
    model = make_net()
    x, y = next(iter(make_loader()))
    made = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=lr), "loader": make_loader()}
    return {"gm": gm, "torch": torch, "criterion": CRITERION, "device": "cpu", "x": x, "y": y, **made, **changes}


def run_recipe(title, names=None):
    """Execute a recipe; return its names, and the run of its monitor."""
    names = names_of_the_reader() if names is None else names
    for block in BLOCKS[title]:
        exec(compile(block, f"docs/recipes.md, {title}", "exec"), names)
    monitor = names["monitor"]
    monitor.close()
    assert not own_errors(monitor.run)
    assert not [finding for finding in monitor.diagnose() if finding.severity != "info"]
    return names, monitor.run


def plain(**options):
    model = make_net()
    return plain_loop(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader(), cross_entropy, **options)


def test_every_block_belongs_to_a_test():
    tested = Path(__file__).read_text("utf-8")
    for title, blocks in BLOCKS.items():
        assert not blocks or f'"{title}"' in tested, title


def test_mixed_precision():
    _, run = run_recipe("Mixed precision")
    assert_same(run, plain(clip=1.0, autocast=torch.float16), rel=1e-2)
    assert run.steps["loss_scale"].to_pylist() == [65536.0] * 6


def test_accumulation():
    names = names_of_the_reader(loader=[*make_loader(), *make_loader()])
    _, run = run_recipe("Accumulation", names)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_same(run, plain_loop(model, optimizer, names["loader"], cross_entropy, accumulate=4))
    assert run.steps["micro_batches"].to_pylist() == [4, 4, 4]


def test_two_networks():
    names = names_of_the_reader()
    torch.manual_seed(0)
    _, run = run_recipe("Two networks", names)
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
    optimizers = {"G": torch.optim.Adam(generator.parameters()), "D": torch.optim.Adam(critic.parameters())}
    steps = {"G": [], "D": []}
    soft = nn.functional.softplus
    for x, _ in make_loader():
        fake = generator(torch.randn(len(x), 2))
        for name, part in (("D", critic), ("G", generator)):
            loss = soft(critic(fake.detach()) - critic(x)).mean() if name == "D" else soft(-critic(fake)).mean()
            part.zero_grad()
            loss.backward()
            steps[name].append(Step(loss.item(), norm_of(part.parameters()), norm_of(part.parameters())))
            optimizers[name].step()
    for name, wanted in steps.items():
        assert_same(run, wanted, optimizer=name)


def test_lbfgs():
    _, run = run_recipe("LBFGS")
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    evaluations, steps, counts = [], [], []
    for batch in make_loader():

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = cross_entropy(model, batch)
            loss.backward()
            evaluations.append(Step(loss.item(), norm_of(model.parameters()), norm_of(model.parameters())))
            return loss

        before = len(evaluations)
        optimizer.step(closure)
        steps.append(evaluations[-1])
        counts.append(len(evaluations) - before)
    assert_same(run, steps)
    assert run.steps["micro_batches"].to_pylist() == counts


def test_sharpness_aware_minimization():
    _, run = run_recipe("Sharpness-aware minimization (SAM)")
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for batch in make_loader():
        cross_entropy(model, batch).backward()
        length = norm_of(model.parameters())
        kept = [(weight, weight.detach().clone()) for weight in model.parameters()]
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * weight.grad / length
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward()
        steps.append(Step(loss.item(), norm_of(model.parameters()), norm_of(model.parameters())))
        with torch.no_grad():
            for weight, value in kept:
                weight.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
    assert_same(run, steps, rel=1e-4)
    assert run.steps["micro_batches"].to_pylist() == [1] * 6


def test_gradient_penalty():
    _, run = run_recipe("Gradient penalty", names_of_the_reader(lr=0.003))

    def loss_of(model, batch):
        x = batch[0].requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return CRITERION(out, batch[1]) + 10 * (slope.norm(dim=1) - 1).square().mean()

    model = make_net()
    assert_same(run, plain_loop(model, torch.optim.SGD(model.parameters(), lr=0.003), make_loader(), loss_of))
    assert run.steps["micro_batches"].to_pylist() == [1] * 6


def test_optimizer_in_the_backward_pass():
    _, run = run_recipe("Optimizer in the backward pass")
    assert_same(run, plain())


def test_moving_average():
    names, run = run_recipe("Moving average of the weights (EMA)")
    assert_same(run, plain())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in names["average"].modules())


def test_torch_compile(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    _, run = run_recipe("torch.compile")
    assert_same(run, plain())
    assert "2.weight" in run.tensors["name"].to_pylist()


def test_a_cell_that_is_run_twice():
    names = names_of_the_reader()
    for block in BLOCKS["Notebooks"]:
        exec(compile(block, "cell", "exec"), names)
    former = names["monitor"]
    _, run = run_recipe("Notebooks", names)
    assert former.run.steps.num_rows == run.steps.num_rows == 6
    assert [event["reason"] for event in former.run.events if event["kind"] == "end"] == ["attached anew"]
    for shown in (former.findings, former.run, former.latest):
        assert shown._repr_html_()


def test_resuming():
    names, run = run_recipe("Resuming")
    assert run.steps.num_rows == 0
    assert names["monitor"].state_dict()["optimizers"]["optimizer"]["step"] == 6


def test_probing(capsys):
    _, run = run_recipe("Probing")
    assert_same(run, plain())
    assert "line: descends" in capsys.readouterr().out


def test_initialisation(capsys):
    names = names_of_the_reader()
    for block in BLOCKS["Initialisation"]:
        exec(compile(block, "docs/recipes.md", "exec"), names)
    assert "xavier" in capsys.readouterr().out.lower()


def test_trying_it_out(capsys):
    names = {"gm": gm}
    for block in BLOCKS["Trying it out"]:
        exec(compile(block, "docs/recipes.md", "exec"), names)
    assert "GM107" in capsys.readouterr().out


def test_tracing_and_exporting():
    names, _ = run_recipe("Tracing and exporting")
    assert type(names["program"]).__name__ == "ExportedProgram"


def test_a_loop_without_an_optimizer():
    _, run = run_recipe("A loop without a torch optimizer")
    assert_same(run, plain())
