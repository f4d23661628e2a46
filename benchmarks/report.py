"""What the report costs: seconds to build and to render it, and its size, for two long runs made up here.

    python -m benchmarks.report [--runs FOLDER] [--live] [--profile]

The runs: a transformer of 12 layers (149 tensors) over 10,000 steps, and 1,000 tensors over 2,000 steps. They are made
once and kept in FOLDER.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gradmedic.diagnosis import diagnose
from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import Frame, TensorTable
from gradmedic.record import Recorder, open_run

SIZES = {"12 layers x 10,000 steps": (149, 10_000), "1,000 tensors x 2,000 steps": (1_000, 2_000)}


def names_of(count):
    """Names and shapes as a transformer has them."""
    parts = [("ln1.weight", "LayerNorm", (768,)), ("ln1.bias", "LayerNorm", (768,))]
    for name, shape in (("attn.qkv", (2304, 768)), ("attn.proj", (768, 768))):
        parts += [(f"{name}.weight", "Linear", shape), (f"{name}.bias", "Linear", shape[:1])]
    parts += [("ln2.weight", "LayerNorm", (768,)), ("ln2.bias", "LayerNorm", (768,))]
    for name, shape in (("mlp.0", (3072, 768)), ("mlp.2", (768, 3072))):
        parts += [(f"{name}.weight", "Linear", shape), (f"{name}.bias", "Linear", shape[:1])]
    found = [("tok.weight", "Embedding", (50257, 768)), ("pos.weight", "Embedding", (1024, 768))]
    layer = 0
    while len(found) < count - 3:
        found += [(f"blocks.{layer}.{name}", kind, shape) for name, kind, shape in parts]
        layer += 1
    found = found[: count - 3]
    tail = [
        ("norm.weight", "LayerNorm", (768,)),
        ("norm.bias", "LayerNorm", (768,)),
        ("head.weight", "Linear", (50257, 768)),
    ]
    return found + tail


def facts_of(entries):
    parameters = {}
    for order, (name, kind, shape) in enumerate(entries):
        size = int(np.prod(shape))
        module = name.rpartition(".")[0]
        parameters[name] = ParameterFact(
            name, module, kind, shape, numel=size, optimizer="adam", reached=True, received=True, order=order
        )
    return Facts(parameters=parameters, optimizers={"adam": {"class": "AdamW", "defaults": {}}})


class MadeUp:
    """Frames of a training that goes well, but for a spike at 60 percent of it."""

    def __init__(self, tensors, steps):
        self.entries = names_of(tensors)
        self.names = tuple(name for name, _, _ in self.entries)
        self.numel = np.array([int(np.prod(shape)) for _, _, shape in self.entries])
        self.steps = steps
        self.rng = np.random.default_rng(0)
        self.base = 10 ** self.rng.uniform(-3, 0, tensors)
        self.start = time.time() - steps * 0.1

    def frame(self, step):
        size = len(self.names)
        noise = np.exp(self.rng.normal(0, 0.2, size)).astype(np.float32)
        spike = 100.0 if step == int(self.steps * 0.6) else 1.0
        norm = self.base * noise * spike / (1 + step / self.steps)
        rms = norm / np.sqrt(self.numel)
        columns = {
            "numel": self.numel,
            "zero_count": (self.numel * 0.01 * noise).astype(np.int64),
            "nan_count": np.zeros(size, np.int64),
            "inf_count": np.zeros(size, np.int64),
            "norm": norm,
            "max_abs": rms * 6,
            "min_abs": rms * 1e-6,
            "mean": rms * 1e-3,
            "std": rms,
            "mean_abs": rms * 0.8,
            "update_norm": 1e-3 * noise.astype(np.float64),
            "unchanged_frac": np.zeros(size),
            "cosine_prev": np.clip(self.rng.normal(0.1, 0.2, size), -1, 1),
            "weight_norm": np.full(size, 10.0 if step < 16 or step % 8 == 0 else np.nan),
            "clip_scale": np.ones(size),
            "status": np.zeros(size, np.int64),
        }
        total = float(np.sqrt((norm**2).sum()))
        return Frame(
            step,
            "adam",
            time=self.start + 0.1 * step,
            loss=float(10 / (1 + step / 500) + self.rng.normal(0, 0.1)),
            lr=1e-3 * min(1.0, step / 200),
            grad_norm=total,
            grad_norm_post=min(total, 1.0),
            clip_scale=min(1.0, 1.0 / total),
            clip_threshold=1.0,
            clipped=total > 1.0,
            step_seconds=0.1,
            overhead_seconds=0.001,
            logged={"accuracy": step / self.steps},
            tensors=TensorTable(self.names, columns, self.histogram(rms) if step % 50 == 0 else None),
            modules=(),
        )

    def histogram(self, rms):
        centre = np.log2(rms)[:, None] + 48 - np.arange(64)[None, :]
        share = np.exp(-0.5 * (centre / 1.5) ** 2)
        return (self.numel[:, None] * share / share.sum(axis=1, keepdims=True)).astype(np.int64)

    def modules(self, step):
        rows = []
        for module in dict.fromkeys(name.rpartition(".")[0] for name in self.names):
            for what in ("output", "grad_output"):
                numbers = {"numel": 4096, "zero_count": 8, "nan_count": 0, "inf_count": 0, "norm": 3.0, "rms": 1.0}
                rows.append(
                    {"step": step, "optimizer": "adam", "module": module, "what": what, "leaf": "0", "call": 0}
                    | numbers
                )
        return rows


def make(folder, tensors, steps):
    made = MadeUp(tensors, steps)
    models = [{"name": "", "class": "GPT", "parameters": {}}]
    models += [
        {"name": name, "class": "Module", "parameters": {}}
        for name in dict.fromkeys(n.rpartition(".")[0] for n in made.names)
    ]
    recorder = Recorder(folder, meta={"models": models, "command": ["python", "train.py"]}, budget="2GB")
    recorder.event({"kind": "facts", "step": 0, "facts": facts_of(made.entries).to_json()})
    for step in range(steps):
        recorder.put(made.frame(step), keep=True)
        if step % 50 == 0:
            recorder.put_module_rows(made.modules(step))
            recorder.flush()
    recorder.close()


def measure(folder, profile):
    """Return seconds of each part, and megabytes."""
    from gradmedic.report.page.payload import build_payload

    marks = [time.perf_counter()]
    run = open_run(folder)
    marks.append(time.perf_counter())
    profiler = cProfile.Profile() if profile else None
    payload = profiler.runcall(build_payload, run, []) if profiler else build_payload(run, [])
    marks.append(time.perf_counter())
    text = json.dumps(payload, allow_nan=False, ensure_ascii=False)
    marks.append(time.perf_counter())
    found = {
        "open": marks[1] - marks[0],
        "build": marks[2] - marks[1],
        "json": marks[3] - marks[2],
        "payload MB": len(text) / 1e6,
    }
    if profiler:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(35)
    try:
        from gradmedic.report.page.render import render_page

        begun = time.perf_counter()
        page = render_page([payload], lang="en", live=False)
    except (ImportError, OSError):
        return found
    return found | {"render": time.perf_counter() - begun, "page MB": len(page.encode()) / 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path(tempfile.gettempdir()) / "gradmedic-report-runs")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--diagnose", action="store_true", help="time the diagnosis too (a minute)")
    args = parser.parse_args()
    for name, (tensors, steps) in SIZES.items():
        folder = args.runs / f"{tensors}x{steps}"
        if not (folder / "run.json").exists():
            begun = time.perf_counter()
            make(folder, tensors, steps)
            print(f"{name}: made in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        found = measure(folder, args.profile)
        if args.diagnose:
            begun = time.perf_counter()
            diagnose(open_run(folder))
            found["diagnose"] = time.perf_counter() - begun
        print(name + ": " + ", ".join(f"{key} {value:.2f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
