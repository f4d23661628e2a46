"""The page as a person uses it: nothing breaks out, nothing is asked for, and what is chosen is what is shown."""

from __future__ import annotations

import pytest

RUNS = ("healthy", "exploding", "many", "empty", "torn", "hostile")


@pytest.mark.parametrize("name", ["empty", "torn"])
def test_what_is_missing_is_said_in_a_sentence(name, shared, payloads):
    page = shared(name)
    page.draw_all()
    missing = page.missing()
    if name == "empty":
        assert {
            "loss",
            "norm",
            "clip",
            "heatmap",
            "flow",
            "distribution",
            "evolution",
            "ratio",
            "schedule",
            "heads",
        } <= missing
        assert "Nothing was trained" in page.page.inner_text("#verdict")
    else:
        assert "loss" not in missing
        for problem in payloads["torn"]["run"]["problems"]:
            assert problem in page.page.inner_text("#record")
    for section in missing:
        assert page.page.inner_text(f"#{section} .missing").strip()


def test_hostile_names_are_shown_and_nothing_else(shared, runs):
    page = shared("hostile")
    page.draw_all()
    page.page.hover("#figure-heatmap .nsewdrag", position={"x": 40, "y": 30})
    assert page.page.evaluate("window.broken") is None
    assert page.page.evaluate(
        "document.querySelectorAll('main img, main script, main b, .topbar img, a[href^=javascript]').length"
    ) == len(page.page.query_selector_all("#clip .counts b"))
    options = page.page.evaluate("[...document.getElementById('tensor').options].map(option => option.textContent)")
    assert any("<a href='javascript" in option for option in options)
    assert "<img src=x onerror=window.broken=1>.bias" in options
    assert "python </script><script>window.broken=1</script>" in page.page.inner_text("#environment")
    labels = page.page.evaluate(
        "[...document.querySelectorAll('#figure-heatmap .ytick text')].map(node => node.textContent)"
    )
    assert any("<img" in label for label in labels), "Plotly shows the signs, and makes no markup of them"
    assert (
        page.page.evaluate("document.querySelectorAll('#figure-heatmap .ytick a, #figure-heatmap .ytick tspan').length")
        == 0
    )
    assert page.complaints == []


def test_two_languages_two_lights(reader, report_file):
    page = reader(dark=True)
    page.open(report_file("healthy", lang="zh"))
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.page.inner_text("#loss h2") == "损失"
    assert page.page.evaluate("document.documentElement.lang") == "zh-CN"
    page.page.select_option("#lang", "en")
    page.settle()
    assert page.page.inner_text("#loss h2") == "Loss"
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.page.evaluate(ground)
    page.page.select_option("#theme", "light")
    page.settle()
    assert page.page.evaluate(ground) != before
    assert page.page.evaluate(
        "[...document.querySelectorAll('[data-word]')].every(node => node.textContent !== node.dataset.word)"
    )
    assert page.complaints == []


@pytest.mark.parametrize("name", ["many", "hostile"])
def test_a_phone_needs_no_scrolling_to_the_side(name, shared):
    page = shared(name, width=390, height=844, mobile=True)
    page.draw_all()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.complaints == []


def test_it_prints(shared):
    page = shared("exploding", dark=True)
    page.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.page.emulate_media(media="print", color_scheme="dark")
    assert page.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.page.evaluate("[...document.querySelectorAll('section:not(.empty) .figure')].every(node => node.data)")
    assert (
        page.page.evaluate("Math.max(...[...document.querySelectorAll('.figure svg')].map(node => node.clientWidth))")
        <= 700
    )
    assert page.page.is_hidden("nav")
    assert page.page.pdf(prefer_css_page_size=False)[:5] == b"%PDF-"
    page.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.complaints == []


def test_figures_offer_to_save_a_picture_and_nothing_that_leaves_the_page(shared):
    page = shared("healthy")
    page.draw_all()
    title = "node => node.dataset.title || node.getAttribute('aria-label')"
    labels = page.page.evaluate(f"[...document.querySelectorAll('#figure-loss .modebar-btn')].map({title})")
    assert len(labels) == 4
    assert not any("cloud" in label.lower() for label in labels)
    with page.page.expect_download() as download:
        page.page.evaluate("document.querySelector('#figure-loss .modebar-btn').click()")
    assert download.value.suggested_filename == "gradmedic-figure-loss.png"
    assert page.complaints == []


def test_the_tool_bar_covers_nothing_of_a_figure(shared):
    """It shows when a figure is pointed at, which is when its last steps are looked at."""
    page = shared("healthy")
    page.draw_all()
    covered = page.page.evaluate(
        """() => [...document.querySelectorAll(".figure")].filter(node => {
            const bar = node.querySelector(".modebar"), drawing = node.querySelector(".nsewdrag");
            if (!bar || !drawing) return false;
            return bar.getBoundingClientRect().bottom > drawing.getBoundingClientRect().top + 1;
        }).map(node => node.id)"""
    )
    assert page.page.locator(".figure .modebar").count() >= 4
    assert covered == []


def test_choosing_a_layer_moves_all_figures(shared, payloads):
    page = shared("healthy")
    page.draw_all()
    page.page.locator("#heatmap").scroll_into_view_if_needed()
    box = page.page.locator("#figure-heatmap .nsewdrag").bounding_box()
    place = (box["x"] + 0.505 * box["width"], box["y"] + 0.75 * box["height"])
    page.page.mouse.move(*place)
    page.page.wait_for_timeout(150)
    assert "step 30" in page.page.inner_text("#readout")
    page.page.mouse.click(*place)
    page.draw_all()
    tensor = payloads["healthy"]["tensors"][4]["name"]
    assert page.page.evaluate("gradmedic.tensor(gradmedic.payload()).name") == tensor
    assert page.page.evaluate("gradmedic.state.step") == 30
    assert tensor in page.page.inner_text("#evolution dl")
    assert page.page.input_value("#tensor") == "4"
    assert not page.page.is_hidden("#heatmap .chosen-mark")
    page.page.focus("#heatmap .frame")
    page.page.keyboard.press("ArrowUp")
    page.settle()
    assert page.page.input_value("#tensor") == "3"


#: Paints the flow anew and returns how far each of its names reaches beyond the place that is its own, in pixels, and
#: the texts themselves.
REACH = """async () => {
    const prototype = CanvasRenderingContext2D.prototype;
    const fillText = prototype.fillText;
    const texts = [];
    let beyond = 0;
    const canvas = document.querySelector('#flow canvas.flow');
    const scale = window.devicePixelRatio || 1;
    prototype.fillText = function (text, x, y) {
        if (this.canvas === canvas) {
            const size = this.measureText(text);
            texts.push(text);
            for (const right of [x - size.actualBoundingBoxLeft, x + size.actualBoundingBoxRight]) {
                for (const down of [y - size.actualBoundingBoxAscent, y + size.actualBoundingBoxDescent]) {
                    const at = this.getTransform().transformPoint({ x: right, y: down });
                    const [left, top] = [at.x / scale, at.y / scale];
                    const below = gradmedic.FLOW.stream + gradmedic.FLOW.labels;
                    const sides = [-left, left - canvas.clientWidth, gradmedic.FLOW.stream - top, top - below];
                    beyond = Math.max(beyond, ...sides);
                }
            }
        }
        return fillText.call(this, text, x, y);
    };
    document.getElementById('flow-slider').dispatchEvent(new Event('input'));
    await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
    prototype.fillText = fillText;
    return [beyond, [...new Set(texts)]];
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("run", RUNS)
def test_no_name_below_the_flow_is_cut_off(shared, run, width):
    page = shared(run, width=width)
    page.draw_all()
    if "flow" in page.missing():
        return
    beyond, texts = page.page.evaluate(REACH)
    assert texts
    assert beyond <= 1, texts


def test_a_click_below_the_flow_chooses_the_layer_and_the_step_under_it(shared):
    page = shared("many")
    page.draw_all()
    found = page.page.evaluate("""() => {
        const canvas = document.querySelector('#flow canvas.flow');
        const flow = gradmedic.flowLayers(gradmedic.payload());
        const box = canvas.getBoundingClientRect();
        const { left, width } = gradmedic.paintFlow(canvas, flow, 0, 1, null);
        const layer = Math.floor(flow.names.length / 3);
        const x = box.left + left + ((layer + 0.5) * width) / flow.names.length;
        const at = (x, y) => ({ clientX: x, clientY: y, bubbles: true });
        const click = (x, y) => canvas.dispatchEvent(new MouseEvent('click', at(x, y)));
        click(x, box.bottom - 1);
        const chosen = [gradmedic.tensor(gradmedic.payload()), gradmedic.state.step];
        click(box.left + left / 2, box.top + 10);
        const after = gradmedic.tensor(gradmedic.payload());
        return [flow.names[layer], flow.grid.of, chosen[0], chosen[1], after, left];
    }""")
    name, kind, tensor, step, after, left = found
    assert left > 20
    assert (tensor["name"] if kind == "tensors" else tensor["module"]) == name
    assert step == 39
    assert after == tensor


def test_the_flow_plays_by_the_keyboard(shared):
    page = shared("healthy", still=False)
    page.page.evaluate("document.getElementById('flow').scrollIntoView({behavior: 'instant'})")
    page.draw_all()
    page.page.focus("#flow-stage")
    page.page.keyboard.press("Home")
    assert page.page.inner_text("#flow-readout").startswith("step 0 ")
    page.page.keyboard.press("ArrowRight")
    assert page.page.inner_text("#flow-readout").startswith("step 1 ")
    page.page.select_option("#flow-speed", "30")
    page.choose(step=50)
    page.page.focus("#flow-stage")
    page.page.keyboard.press("Space")
    page.page.wait_for_selector("#flow-play[aria-pressed=true]")
    page.page.wait_for_selector("#flow-play[aria-pressed=false]", timeout=20_000)
    assert page.page.inner_text("#flow-readout").startswith("step 59 ")
    assert page.complaints == []


def test_two_runs_side_by_side(shared):
    page = shared("healthy")
    page.page.select_option("#other", "1")
    page.draw_all()
    names = [trace["name"] for trace in page.traces("loss")]
    assert "loss (exploding)" in names
    page.page.select_option("#run", "1")
    page.draw_all()
    assert "findings" in page.page.inner_text("#verdict") or "finding" in page.page.inner_text("#verdict")
    assert page.page.input_value("#other") == ""
    assert page.complaints == []


def test_zoom_survives_a_change_of_language(shared):
    page = shared("healthy")
    page.draw_all()
    page.page.evaluate("Plotly.relayout('figure-norm', {'xaxis.range': [10, 20]})")
    page.choose(lang="zh", version=99)
    page.draw_all()
    assert page.page.evaluate("document.getElementById('figure-norm')._fullLayout.xaxis.range.slice()") == [10, 20]


def test_hundreds_of_rows_are_filtered_grouped_and_paged(shared):
    page = shared("many")
    page.draw_all()
    rows = "document.getElementById('figure-heatmap').data[0].z.length"
    assert page.page.evaluate(rows) == 200
    assert page.page.inner_text("#page") == "1–200 of 1,000"
    page.choose(page=4)
    page.draw_all()
    assert page.page.inner_text("#page") == "801–1,000 of 1,000"
    page.choose(group="blocks", page=0)
    page.draw_all()
    assert page.page.inner_text("#page") == "1–200 of 200"
    page.choose(group="tensors", filter="blocks.7.*.bias")
    page.draw_all()
    assert page.page.inner_text("#page") == "1–2 of 2"
    page.choose(filter="", sort="worst")
    page.draw_all()
    first = page.page.evaluate("document.getElementById('figure-heatmap').layout.yaxis.ticktext[0]")
    trouble = page.page.evaluate(
        "gradmedic.payload().tensors.map(tensor => [tensor.trouble, tensor.name]).sort((a, b) => b[0] - a[0])[0][0]"
    )
    names = page.page.evaluate(
        f"gradmedic.payload().tensors.filter(tensor => tensor.trouble === {trouble}).map(tensor => tensor.name)"
    )
    assert first.removeprefix("● ") in names


def test_the_module_tree_folds_and_marks_the_chosen_layer(shared):
    page = shared("healthy")
    page.choose(tensor=0)
    page.draw_all()
    rows = "document.querySelectorAll('#module-tree tbody tr').length"
    whole = page.page.evaluate(rows)
    page.page.evaluate("document.querySelector('#module-tree button.toggle').click()")
    assert page.page.evaluate(rows) == 1  # the model itself
    page.page.evaluate("document.querySelector('#module-tree button.toggle').click()")
    assert page.page.evaluate(rows) == whole > 1
    assert page.page.evaluate("document.querySelectorAll('#module-tree tr.chosen').length") == 1
    assert page.page.evaluate("document.querySelectorAll('[id]').length") == page.page.evaluate(
        "new Set([...document.querySelectorAll('[id]')].map(node => node.id)).size"
    )


def test_a_loss_over_many_decades_has_a_logarithmic_axis_by_itself(shared):
    kind = "document.getElementById('figure-loss').layout.yaxis.type"
    for name, expected in (("exploding", "log"), ("healthy", "linear")):
        page = shared(name)
        page.choose(logLoss=None)
        page.draw_all()
        assert page.page.evaluate(kind) in (expected, None if expected == "linear" else expected)
        assert page.page.evaluate("document.getElementById('log-loss').checked") == (expected == "log")


def test_language_run_and_comparison_last_over_a_reload_and_a_link_within_the_page(reader, report_file):
    page = reader()
    page.open(report_file("healthy", "exploding") + "#norm?lang=zh")
    assert page.page.inner_text("#norm h2") == "梯度范数"
    assert 0 <= page.page.evaluate("document.getElementById('norm').getBoundingClientRect().top") < 900
    page.page.select_option("#run", "1")
    page.page.select_option("#other", "0")
    page.page.evaluate("document.querySelector('nav a[href=\"#loss\"]').click()")
    page.page.wait_for_function("window.location.hash.startsWith('#loss?')")
    page.page.reload()
    page.settle()
    state = "[gradmedic.state.lang, gradmedic.state.run, gradmedic.state.other]"
    assert page.page.evaluate(state) == ["zh", "1", "0"]
    page.page.select_option("#lang", "en")
    assert page.page.evaluate("window.location.hash") == "#loss?run=1&other=0"
    assert page.page.evaluate("() => { window.location.hash = '#%E0?lang=%E0'; return gradmedic.readAddress(); }") == {}
    assert page.complaints == []


def test_a_choice_draws_only_what_shows_it_and_each_figure_once(shared):
    page = shared("healthy")
    page.draw_all()
    for changes, expected in (
        ({"tensor": 3}, {"figure-evolution", "figure-direction"}),
        ({"metric": "max_abs"}, {"figure-heatmap"}),
        ({"sort": "worst"}, {"figure-heatmap", "figure-distribution"}),
        ({"step": 17}, {"figure-distribution", "figure-ratio"}),
        ({"logLoss": True}, {"figure-loss"}),
        ({"search": "2"}, set()),
    ):
        page.page.evaluate("gradmedic.drawn = { figures: [], points: 0 }")
        page.page.evaluate("changes => { gradmedic.set(changes); gradmedic.drawChanged(); }", changes)
        figures = page.page.evaluate("gradmedic.drawn.figures")
        assert len(figures) == len(set(figures))
        assert set(figures) <= expected, changes


def test_thousands_of_marks_are_one_element(shared):
    page = shared("healthy")
    page.draw_all()
    count = page.page.evaluate(
        """() => {
            const x = Array.from({ length: 2000 }, (unused, at) => at);
            const series = { step: x, y: x.map(() => Infinity) };
            const marks = gradmedic.nonfiniteMarks(series, "norm");
            const node = document.getElementById("figure-norm");
            Plotly.react(node, [{ x, y: x }, marks], { ...node.layout, yaxis: {}, xaxis: {} });
            return [node.querySelectorAll(".scatterlayer path").length, new Set(marks.x).size];
        }"""
    )
    page.page.evaluate("gradmedic.set({ version: gradmedic.state.version + 1 })")
    assert count[0] < 10
    assert count[1] == 2000


def test_rows_that_would_read_the_same_are_told_apart(shared):
    page = shared("healthy")
    names = ["stage1.conv1.weight", "stage2.conv1.weight", "a.block.of.stage1.conv1.weight", "x"]
    shown = page.page.evaluate("names => gradmedic.shortenAll(names, 14)", names)
    assert len(set(shown)) == len(names)
    assert all(len(label) <= 14 for label in shown)
    assert page.page.evaluate("names => gradmedic.shortenAll(names, 40)", names) == names


def test_numbers_beyond_single_precision_are_numbers(shared):
    page = shared("healthy")
    found = page.page.evaluate(
        """() => {
            const bytes = new Uint8Array(Float64Array.of(1e308, -1e308, NaN, 3).buffer);
            const packed = { t: "f8", n: [2, 2], b: btoa(String.fromCharCode(...bytes)) };
            const grid = { id: "max_abs", values: packed };
            const rows = gradmedic.rowValues(grid, { members: [0, 1] });
            return [...gradmedic.unpackRow(packed, 0), rows[0], gradmedic.cellText(rows[0])];
        }"""
    )
    assert found == [1e308, -1e308, 1e308, "1.00e308"]


def test_the_tool_bar_hides_no_legend_until_it_is_asked_for(shared):
    page = shared("healthy", width=1280)
    shown = "getComputedStyle(document.querySelector('#figure-norm .modebar')).opacity"
    page.page.mouse.move(1, 1)
    assert page.page.evaluate(shown) == "0"
    page.page.locator("#figure-norm").hover()
    assert page.page.evaluate(shown) == "1"


def test_a_logarithmic_axis_has_two_ticks_at_least(shared):
    page = shared("healthy")
    counts = page.page.evaluate("""(() => {
        const node = document.createElement("div"), counts = [];
        node.id = "figure-ticks"; node.className = "figure"; document.body.append(node);
        for (const [low, high] of [[0.02, 60], [0.013, 70], [0.3, 3.5], [0.5, 40], [1e-5, 0.9], [0.011, 99]]) {
          node.style.height = "160px";
          const traces = [{ x: [0, 1], y: [low, high], type: "scatter" }];
          gradmedic.chart(node, traces, { yaxis: gradmedic.logAxis("") }, "ticks", String(low));
          counts.push(node.querySelectorAll(".ytick text").length);
        }
        node.remove();
        return counts;
    })()""")
    assert min(counts) >= 2


def test_a_run_that_ends_in_nan_opens_at_its_first_fault(reader, report_file, payloads):
    fault = next(each for each in payloads["exploding"]["findings"]["en"] if each["severity"] in ("critical", "error"))
    tab = reader()
    opened = {}
    for name in ("exploding", "healthy"):
        tab.open(report_file(name))
        opened[name] = tab.page.evaluate("gradmedic.state.step")
    assert opened == {"exploding": fault["step"], "healthy": None}
    assert fault["step"] < 50  # of sixty steps
