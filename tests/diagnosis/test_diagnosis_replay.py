"""Several processes in one record, and several phases in one script: each is judged by itself."""

import pytest
import torch
from diagnosis_frames import FakeRun, frames
from torch import nn
from torch.nn import functional as F

import gradmedic as gm
from gradmedic.diagnosis import diagnose
from gradmedic.watching import watch_process

FALLING = [2.0 * 0.97**step for step in range(80)]


def later(made, seconds):
    for frame in made:
        frame.time += seconds
    return made


def test_processes_one_after_the_other_have_no_common_course():
    """The second begins at a loss that would be a divergence of the first."""
    second = [60.0 * value for value in FALLING]
    run = FakeRun(frames(FALLING) + later(frames(second), 100.0) + later(frames(FALLING), 200.0))
    assert [finding.code for finding in diagnose(run) if finding.severity != "info"] == []


def test_a_fault_of_one_of_them_is_said_once():
    bad = frames([*FALLING[:20], *[float("nan")] * 10], [*[1.0] * 20, *[float("nan")] * 10])
    again = later(frames([*FALLING[:20], *[float("nan")] * 10], [*[1.0] * 20, *[float("nan")] * 10]), 200.0)
    found = diagnose(FakeRun(bad + later(frames(FALLING), 100.0) + again))
    assert [(finding.code, finding.step) for finding in found if finding.severity != "info"] == [("GM201", 20)]


@pytest.mark.parametrize("freeze", [True, False])
def test_the_head_of_an_earlier_phase_was_trained(freeze):
    torch.manual_seed(0)
    backbone, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), torch.randn(64, 8)
    y = (x[:, 0] > 0).long()
    monitor = watch_process(record=None, strict=True)
    first = model = nn.Sequential(backbone, nn.Linear(16, 2))
    for _ in range(2):
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-2)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        backbone.requires_grad_(not freeze)
        model = nn.Sequential(backbone, nn.Linear(16, 2))
    assert first is not model
    monitor.close()
    assert [finding.code for finding in monitor.diagnose() if finding.severity != "info"] == []


def test_a_record_on_disk_is_judged_as_the_runs_it_holds(tmp_path):
    """Restarts write beside each other."""
    from gradmedic.record import Recorder, open_run

    for part, losses in enumerate((FALLING, [60.0 * value for value in FALLING])):
        recorder = Recorder(tmp_path, meta={}, join=part > 0)
        for frame in later(frames(losses), 100.0 * part):
            recorder.put(frame, keep=True)
        recorder.close()
    run = open_run(tmp_path)
    assert len(run.series("loss")) == 160
    assert [finding.code for finding in gm.diagnose(run) if finding.severity != "info"] == []


class Adapted(nn.Module):
    """A frozen layer and a low-rank correction."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_a_model_that_is_rebuilt_under_new_names_between_two_phases():
    """The first optimizer's tensors are unknown to the facts by then; no rule may trip over it."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)], nn.Linear(8, 2))
    monitor = watch_process(record=None, strict=True)
    for _ in range(2):
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-2)
        for _ in range(45):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for place in range(4):
            model[place] = Adapted(nn.Linear(8, 8) if isinstance(model[place], Adapted) else model[place])
    monitor.close()
    assert monitor.diagnose() is not None
