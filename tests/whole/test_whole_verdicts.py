"""From real training to the verdict: what is at the top, where, and that healthy loops stay quiet."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradmedic as gm
from gradmedic.watching import watch_process

STEPS = 60


class Net(nn.Module):
    """Two hidden layers with a switch for a fault between them."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        if fault == "unused":
            self.forgotten = nn.Linear(16, 16)

    def forward(self, x, step):
        hidden = torch.tanh(self.first(x))
        if self.fault == "detach":
            hidden = hidden.detach()
        if self.fault == "log" and step >= 20:
            hidden = torch.exp(torch.log(hidden))
        return self.head(torch.tanh(self.second(hidden)))


def data(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 8, generator=generator)
    return x, x[:, :1] * 0.5 + 0.1 * torch.randn(32, 1, generator=generator)


def run(fault="", *, loss=F.mse_loss, optimizer=torch.optim.Adam, lr=1e-3, spoil=None):
    torch.manual_seed(0)
    model = Net(fault)
    steps = optimizer(model.parameters(), lr=lr)
    with gm.watch(model, steps, strict=True) as monitor:
        for step in range(STEPS):
            x, y = data(step)
            if spoil and step == 20:
                spoil(x, y)
            value = loss(model(x, step), y)
            steps.zero_grad()
            value.backward()
            steps.step()
    return monitor.diagnose()


def set_nan(tensor):
    tensor[3, 0] = float("nan")


def root_at_zero(prediction, y):
    return (prediction - prediction.detach()).abs().sum().add(F.mse_loss(prediction, y)) + (0 * prediction).sum().sqrt()


def log_of_anything(prediction, y):
    return F.mse_loss(prediction, y) + torch.log(prediction - 10).mean()


@pytest.mark.parametrize(
    ("given", "code", "variant", "step", "place"),
    [
        ({"spoil": lambda x, y: set_nan(x)}, "GM201", "data", 20, "input"),
        ({"spoil": lambda x, y: set_nan(y)}, "GM201", "data", 20, "target"),
        ({"spoil": lambda x, y: set_nan(y), "loss": lambda p, y: (p - y).pow(2).mean()}, "GM201", "data", 20, "target"),
        ({"fault": "log"}, "GM201", "forward", 20, "first"),
        ({"loss": log_of_anything}, "GM201", "loss", 0, "loss"),
        ({"loss": root_at_zero}, "GM201", "backward", 0, "head.bias"),
        ({"fault": "unused"}, "GM101", "never_called", 0, "forgotten.weight"),
        ({"fault": "detach"}, "GM102", "", 0, "first"),
        ({"optimizer": torch.optim.SGD, "lr": 500.0}, "GM401", None, 0, None),
        ({"lr": 0.0}, "GM111", None, 0, None),
    ],
)
def test_the_fault_is_on_top(given, code, variant, step, place):
    findings = run(**given)
    top = findings[0]
    assert top.code == code, findings
    assert top.step == step
    if variant is not None:
        assert top.variant == variant
    if place is not None:
        assert place in top.where


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_a_healthy_run_is_quiet(optimizer):
    assert [finding for finding in run(optimizer=optimizer) if finding.severity != "info"] == []


def test_rows_of_the_data_are_named():
    findings = run(spoil=lambda x, y: set_nan(x))
    assert findings[0].params["rows"] == ("3",)


def test_a_tied_embedding_does_not_hide_a_cut():
    """The embedding is reached through the output layer that shares its weight; what lies between is cut off."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(10, 8)
            self.early, self.late = nn.Linear(8, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, codes):
            return self.head(self.late(torch.tanh(self.early(self.tokens(codes))).detach()))

    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(30):
            codes = torch.randint(10, (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(codes), codes).backward()
            optimizer.step()
    (finding,) = monitor.diagnose()
    assert (finding.code, finding.where) == ("GM102", ("early", "late"))


def test_a_bias_that_cancels_out_is_a_note():
    """The score of a pair is a difference: the last bias has a gradient of exactly zero in good health."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(80):
            x, _ = data(step)
            optimizer.zero_grad()
            F.softplus(model(x - 1) - model(x)).mean().backward()
            optimizer.step()
    assert {finding.severity for finding in monitor.diagnose()} <= {"info"}


def test_a_converged_lbfgs_may_stand_still():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(30):
            optimizer.step(closure)
    assert [finding.code for finding in monitor.diagnose() if finding.severity != "info"] == []


@pytest.mark.parametrize("how", ["data", "no_grad"])
def test_weights_updated_by_hand_have_an_owner(how):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    with_process = watch_process(record=None, namespace=lambda: {"model": model}, strict=True)
    for step in range(STEPS):
        x, y = data(step)
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            if how == "data":
                parameter.data -= 0.05 * parameter.grad
            else:
                with torch.no_grad():
                    parameter -= 0.05 * parameter.grad
    with_process.close()
    assert {frame.optimizer for frame in with_process.run.frames()} == {"by_hand"}
    assert [finding.code for finding in with_process.diagnose() if finding.severity != "info"] == []


def test_a_layer_that_was_replaced_after_the_optimizer_was_made():
    """In an unmodified script too, the optimizer's old tensors are told from the model's new ones."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(16, 1)
    monitor = watch_process(record=None, namespace=lambda: {"model": model}, strict=True)
    for step in range(STEPS):
        x, y = data(step)
        optimizer.zero_grad()
        F.mse_loss(model(x, step), y).backward()
        optimizer.step()
    monitor.close()
    top = monitor.diagnose()[0]
    assert top.code == "GM105"
    assert {name.rpartition("head.")[2] for name in top.where} == {"weight", "bias"}
