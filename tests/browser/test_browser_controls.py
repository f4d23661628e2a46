"""Every control of the page is worked on every run, and nothing complains."""

from __future__ import annotations

import pytest

RUNS = ("healthy", "exploding", "many", "empty", "torn", "hostile")
SECTIONS = [
    *(
        "verdict",
        "findings",
        "loss",
        "norm",
        "clip",
        "heatmap",
        "flow",
        "distribution",
        "evolution",
        "ratio",
        "direction",
    ),
    *("schedule", "heads", "tree", "record", "environment"),
]

#: Works the controls of the page: some options of each choice (all of them where `all`), each box and slider, and two
#: of the buttons of each kind, of which a long list of names has hundreds.
OPERATE = """async all => {
    const pause = () => new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
    const used = [];
    const counts = new Map();
    const visible = node => node.offsetParent !== null && !node.disabled && !node.closest('.modebar');
    const fresh = node => {
        const kind = node.id || `${node.closest('section').id} ${node.tagName} ${node.className}`;
        counts.set(kind, (counts.get(kind) || 0) + 1);
        return counts.get(kind) <= 2;
    };
    const send = async (node, value, event) => {
        node.value = value;
        node.dispatchEvent(new Event(event));
        await pause();
    };
    for (const section of gradmedic.allSections()) {
        section.node.scrollIntoView({ behavior: 'instant' });
        await pause();
        await pause();
        for (const node of section.node.querySelectorAll('select, input, button, summary')) {
            if (!node.isConnected || !visible(node) || !fresh(node)) continue;
            used.push(node.id || node.tagName);
            if (node.tagName === 'SELECT') {
                const values = [...node.options].map(option => option.value);
                const some = all ? values.slice(1) : values.slice(1, 3);
                for (const value of [...some, values[0]]) await send(node, value, 'change');
            } else if (node.type === 'range') {
                for (const value of [node.min, node.max]) await send(node, value, 'input');
            } else if (node.type === 'search') {
                for (const text of ['*.weight', '(', '']) {
                    await send(node, text, 'input');
                    await new Promise(resolve => setTimeout(resolve, 130));
                }
            } else {
                node.click();
                await pause();
            }
        }
    }
    for (const id of ['tensor', 'optimizer']) {
        const node = document.getElementById(id);
        if (!visible(node)) continue;
        const values = [...node.options].map(option => option.value);
        for (const value of [values[values.length - 1], values[0]]) await send(node, value, 'change');
    }
    await send(document.getElementById('theme'), 'dark', 'change');
    await send(document.getElementById('lang'), 'zh', 'change');
    gradmedic.drawAll();
    return used;
}"""


@pytest.mark.parametrize("name", RUNS)
def test_every_control_works_without_a_complaint(name, shared):
    page = shared(name)
    assert page.page.evaluate("gradmedic.allSections().map(section => section.id)") == SECTIONS
    # All options where everything is recorded; the runs that lack something take the same path through most of them.
    used = page.page.evaluate(OPERATE, name == "healthy")
    page.settle()
    assert page.complaints == []
    assert page.page.evaluate("window.broken") is None
    assert page.page.inner_text("#title-loss") == "损失"
    wanted = {"metric", "filter", "group", "sort", "flow-play", "flow-slider", "flow-speed", "log-loss", "layer-next"}
    assert name == "empty" or wanted <= set(used)
