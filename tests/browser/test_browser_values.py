"""The numbers on the page are those of the record."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest

from gradmedic.record import open_run

RUNS = ("healthy", "exploding", "hostile")


@pytest.fixture(scope="module")
def run(runs):
    return open_run(runs["healthy"])


def test_curves_are_the_recorded_series(shared, run):
    page = shared("healthy")
    page.draw_all()
    for figure, name, column in (
        ("loss", "loss", "loss"),
        ("norm", "before clipping", "grad_norm"),
        ("norm", "after clipping", "grad_norm_post"),
        ("norm", "threshold", "clip_threshold"),
        ("clip", "factor of clipping", "clip_scale"),
        ("schedule", "learning rate", "lr"),
        ("loss", "accuracy", "accuracy"),
    ):
        trace = page.trace(figure, name)
        np.testing.assert_allclose(np.array(trace["y"], dtype=float), run.series(column), rtol=1e-6, err_msg=column)
        assert trace["x"] == list(range(60))
    assert 0 < run.series("clipped").sum() < 60
    clipped = np.flatnonzero(run.steps["clipped"].to_numpy(zero_copy_only=False))
    assert page.trace("norm", "clipped")["x"] == clipped.tolist()
    assert page.complaints == []


def test_heatmap_and_chosen_layer_are_the_recorded_tables(shared, run):
    page = shared("healthy")
    page.draw_all()
    for metric, column in (("norm", "norm"), ("max_abs", "max_abs")):
        page.choose(metric=metric, tensor=2)
        page.draw_all()
        _, names, values = run.matrix(column)
        shown = np.array(page.traces("heatmap")[0]["z"], dtype=float)
        labels = page.page.evaluate("document.getElementById('figure-heatmap').layout.yaxis.ticktext")
        assert [label.removeprefix("● ") for label in labels] == [
            "0.weight",
            "0.bias",
            "2.weight",
            "2.bias",
            "4.weight",
            "4.bias",
        ]
        places = [list(names).index(label.removeprefix("● ")) for label in labels]
        np.testing.assert_allclose(10**shown, values[:, places].T, rtol=1e-5)
        chosen = page.page.evaluate("gradmedic.tensor(gradmedic.payload()).name")
        own = page.trace("evolution", {"norm": "gradient norm", "max_abs": "largest gradient element"}[metric])
        np.testing.assert_allclose(own["y"], values[:, list(names).index(chosen)], rtol=1e-5)
    assert page.complaints == []


def test_joined_rows_are_the_root_of_the_sum_of_squares(shared, run):
    page = shared("healthy")
    page.choose(group="layers")
    page.draw_all()
    _, names, values = run.matrix("norm")
    expected = np.hypot(values[:, list(names).index("0.weight")], values[:, list(names).index("0.bias")])
    np.testing.assert_allclose(10 ** np.array(page.traces("heatmap")[0]["z"][0]), expected, rtol=1e-5)


def test_ratio_of_neighbours(shared, run):
    page = shared("healthy")
    page.choose(step=30)
    page.draw_all()
    _, names, values = run.matrix("norm")
    at = {name: values[30, place] for place, name in enumerate(names)}
    rms = {}
    for module, inputs, outputs in (("0", 8, 32), ("2", 32, 32), ("4", 32, 3)):
        rms[module] = math.hypot(at[f"{module}.weight"], at[f"{module}.bias"]) / math.sqrt(outputs * (inputs + 1))
    expected = [rms["0"] / rms["2"], rms["2"] / rms["4"]]
    np.testing.assert_allclose(page.trace("ratio", "step 30")["y"], expected, rtol=1e-5)


def test_what_is_not_finite_is_marked_and_never_drawn_as_a_number(shared, runs):
    page = shared("exploding")
    page.draw_all()
    run = open_run(runs["exploding"])
    norm = run.series("grad_norm")
    bad = np.flatnonzero(~np.isfinite(norm))
    assert 0 < len(bad) < 60, "the run is meant to go from finite to not finite"
    marks = [trace for trace in page.traces("norm") if trace["name"] == "not finite"]
    assert marks[0]["x"] == bad.tolist()
    drawn = page.trace("norm", "before clipping")["y"]
    assert [value is None for value in drawn] == (~np.isfinite(norm)).tolist()
    values, nonfinite = page.traces("heatmap")
    assert nonfinite["name"] == "nonfinite"
    assert all(value is None for value in np.array(values["z"], dtype=object)[:, -1])
    assert all(value == 1 for value in np.array(nonfinite["z"], dtype=object)[:, -1])
    assert "not finite" in page.page.inner_text("#verdict")
    assert page.complaints == []


def test_zero_not_finite_and_not_recorded_have_colours_of_their_own(shared):
    page = shared("hostile")
    page.choose(optimizer="sgd", metric="norm")
    page.draw_all()
    traces = {trace["name"]: trace["z"] for trace in page.traces("heatmap")}
    assert traces.keys() == {"values", "zero", "nonfinite"}
    cells = [
        (a, b, c)
        for rows in zip(*(traces[name] for name in ("values", "zero", "nonfinite")), strict=True)
        for a, b, c in zip(*rows, strict=True)
    ]
    assert all(sum(part is not None for part in cell) <= 1 for cell in cells)
    assert any(cell[1] == 1 for cell in cells)
    assert any(cell[2] == 1 for cell in cells)


def test_boxes_are_the_quantiles_of_the_payload(shared, payloads):
    page = shared("exploding")
    page.choose(step=0)
    page.draw_all()
    box = next(trace for trace in page.traces("distribution") if trace["type"] == "box")
    entry = payloads["exploding"]["boxes"][0]
    q = np.frombuffer(base64.b64decode(entry["q"]["b"]), "<f4").reshape(entry["q"]["n"])
    assert (np.diff(q, axis=1) >= 0).all()
    np.testing.assert_allclose(np.array([box["q1"], box["median"], box["q3"]]).T, q[:, 2:5], rtol=1e-6)


def test_verdict_and_cards_say_what_the_diagnosis_says(shared, payloads):
    page = shared("exploding")
    findings = payloads["exploding"]["findings"]["en"]
    text = page.page.inner_text("#verdict")
    assert findings[0]["title"] in text
    assert findings[0]["code"] in text
    cards = page.page.inner_text("#findings")
    for finding in findings:
        assert finding["message"] in cards
        assert all(remedy["text"] in cards for remedy in finding["remedies"])
        assert all(entry["name"] in cards for entry in finding["evidence"])
    page.choose(lang="zh")
    assert payloads["exploding"]["findings"]["zh"][0]["title"] in page.page.inner_text("#verdict")


def test_flow_says_the_largest_and_the_smallest_layer(shared, run):
    page = shared("healthy")
    page.choose(step=10)
    page.draw_all()
    _, names, values = run.matrix("norm")
    norms = {}
    for name, value in zip(names, values[10], strict=True):
        norms[name[0]] = math.hypot(norms.get(name[0], 0.0), value)
    text = page.page.inner_text("#flow-readout")
    largest = max(norms, key=norms.get)
    assert f"largest {norms[largest]:.3g} in {largest}" in text
    assert f"in {min(norms, key=norms.get)}" in text.partition("smallest")[2]
    assert text.startswith("step 10")


def test_columns_of_a_thinned_record_are_drawn_equally_wide_and_lose_no_extreme(shared):
    page = shared("healthy")
    found = page.page.evaluate(
        """() => {
            const pack = (numbers, type) => {
                const data = type === 'i4' ? Int32Array.from(numbers) : Float32Array.from(numbers);
                return { t: type, n: [numbers.length], b: btoa(String.fromCharCode(...new Uint8Array(data.buffer))) };
            };
            const steps = [...Array(100).keys(), ...Array.from({ length: 100 }, (unused, at) => 100 + 100 * at)];
            const values = steps.map((step, at) => 1 + (at % 3) / 10);
            [values[42], values[57], values[150], values[160]] = [1e6, Infinity, 1e-6, NaN];
            const grid = { first: pack(steps, 'i4'), last: pack(steps, 'i4'), log: true };
            const columns = gradmedic.columnsOf(grid);
            const row = gradmedic.evenRow(grid, Float32Array.from(values));
            const at = step => Math.floor((step - columns.start) / columns.width);
            return {
                count: columns.count, length: row.length, end: columns.start + columns.count * columns.width,
                covers: columns.low[0] === 0 && columns.high[columns.count - 1] === 199,
                gapless: columns.low.every((low, at) => at === 0 || low <= columns.high[at - 1] + 1),
                infinite: row[at(57)] === Infinity, small: row[at(5150)], absent: Number.isNaN(row[at(6150)]),
                last: row[row.length - 1], usual: row[at(3050)],
            };
        }"""
    )
    assert found["count"] == found["length"] == 800
    assert found["end"] == pytest.approx(10_000.5)
    assert found["covers"]
    assert found["gapless"]
    assert found["infinite"]
    assert found["absent"]
    assert found["small"] == pytest.approx(1e-6)
    assert 1.0 <= found["usual"] <= 1.2
    page.page.evaluate("window.grid = gradmedic.grid(gradmedic.payload(), 'norm')")
    assert page.page.evaluate("gradmedic.columnsOf(grid).count === grid.first.n[0]"), "an even record stays as it is"


def test_one_of_a_unit_is_singular(shared):
    said = shared("healthy").page.evaluate(
        """() => {
          const gm = window.gradmedic, was = gm.state.lang;
          const told = ["en", "zh"].map((lang) => {
            gm.state.lang = lang;
            return [1, 2].map((n) => gm.unitName("elements", n));
          });
          gm.state.lang = was;
          return told;
        }"""
    )
    assert said == [["element", "elements"], ["个元素", "个元素"]]
