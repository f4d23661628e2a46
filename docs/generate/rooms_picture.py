"""The picture of the rooms: an SVG drawn from the real imports, every arrow downwards."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from generate.rooms import JOBS, direct, floors, imports

BOX_WIDTH, BOX_HEIGHT, ROW, GAP = 126, 64, 120, 12
STYLE = (
    "text{font-family:system-ui,sans-serif;text-anchor:middle;fill:#1f2937}"
    ".name{font-size:15px;font-weight:600}.job{font-size:11px;fill:#4b5563}"
    ".box{fill:#f8fafc;stroke:#475569;stroke-width:1.2}.face{fill:#e0f2fe}.ground{fill:#fef3c7}"
    ".way{fill:none;stroke:#94a3b8;stroke-width:1.3}"
)
Place = tuple[float, float]


def rooms_picture() -> str:
    """Return the picture as SVG."""
    graph = imports()
    rows = _rows(graph)
    lines = {(room, other) for room, other in direct(graph) if other != "ground"}
    wide = max(map(len, rows)) * (BOX_WIDTH + GAP)
    places = _places(rows, lines, wide)
    height = ROW * len(rows) - (ROW - BOX_HEIGHT) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" role="img">',
        "<title>The rooms of gradmedic and which imports which</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{wide}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#94a3b8"/></marker></defs>',
    ]
    parts += [_way(places[room], places[other]) for room, other in sorted(lines)]
    parts += [_box(room, places[room], rows[0], wide) for row in rows for room in row]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return rows of rooms from the top; each room as high as those allow that import it."""
    above: dict[str, set[str]] = {room: set() for room in graph}
    for room, others in graph.items():
        for other in others:
            above[other].add(room)
    depth = floors(above)
    order = list(JOBS)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for room in sorted(graph, key=order.index):
        rows[depth[room]].append(room)
    return rows


def _places(rows: list[list[str]], lines: set[tuple[str, str]], wide: int) -> dict[str, Place]:
    """Return room -> centre of its box: below the middle of the rooms that import it, as far as there is space."""
    places: dict[str, Place] = {}
    for at, row in enumerate(rows):
        y = 20 + BOX_HEIGHT / 2 + ROW * at
        wanted = {room: [places[other][0] for other, below in lines if below == room] for room in row}
        middle = {room: sum(xs) / len(xs) if xs else wide / 2 for room, xs in wanted.items()}
        order = row if at == 0 else sorted(row, key=lambda room: middle[room])
        free = BOX_WIDTH / 2 + GAP / 2
        for number, room in enumerate(order):
            left = len(order) - number - 1
            most = wide - BOX_WIDTH / 2 - GAP / 2 - left * (BOX_WIDTH + GAP)
            x = free if at == 0 else min(max(middle[room], free), most)
            places[room] = (wide / 2 if room == "ground" else x, y)
            free = x + BOX_WIDTH + GAP
    return places


def _box(room: str, place: Place, faces: list[str], wide: int) -> str:
    x, y = place
    kind = "box face" if room in faces else "box ground" if room == "ground" else "box"
    width = wide - GAP if room == "ground" else BOX_WIDTH
    lines = _folded(JOBS[room], 100 if room == "ground" else 20)
    words = "".join(
        f'<text class="job" x="{x:.0f}" y="{y + 7 + 13 * at:.0f}">{escape(line)}</text>'
        for at, line in enumerate(lines)
    )
    return (
        f'<rect class="{kind}" x="{x - width / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{width}" '
        f'height="{BOX_HEIGHT}" rx="7"/><text class="name" x="{x:.0f}" y="{y - 11:.0f}">{escape(room)}</text>{words}'
    )


def _folded(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _way(start: Place, end: Place) -> str:
    x1, y1, x2, y2 = start[0], start[1] + BOX_HEIGHT / 2, end[0], end[1] - BOX_HEIGHT / 2 - 1
    bend = (y2 - y1) / 2
    return (
        f'<path class="way" marker-end="url(#tip)" d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} '
        f'{y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'
    )
