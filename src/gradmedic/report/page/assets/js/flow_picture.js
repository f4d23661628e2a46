"use strict";
// Draws the gradient on its way through the layers: a stream as wide as the norm is large, and below it all steps so far.
(function (gm) {
  const STREAM = 170; // pixels of the stream's height
  const LABELS = 88; // of the names below it
  const LONGEST = 100; // of one of them, which stands at an angle
  const END = 9; // by which a name ends to the right of the middle of its layer
  const ANGLE = Math.PI / 4;
  const font = (bold) => `${bold ? "bold " : ""}10.5px system-ui, sans-serif`;
  const MOST_ROWS = 150; // of the picture of all steps
  gm.FLOW = { stream: STREAM, labels: LABELS, steps: MOST_ROWS, height: STREAM + LABELS + MOST_ROWS };

  let history = { flow: null, dark: null, canvas: null };

  /** Return all steps as a small picture, one pixel for each layer and step; painted once. */
  function historyOf(flow, palette) {
    if (history.flow === flow && history.dark === gm.dark()) return history.canvas;
    const canvas = document.createElement("canvas");
    canvas.width = flow.names.length;
    canvas.height = flow.columns;
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    const fixed = { absent: gm.channels(palette.absent), zero: gm.channels(palette.zero), broken: gm.channels(gm.NONFINITE) };
    flow.values.forEach((row, layer) => {
      for (let column = 0; column < flow.columns; column += 1) {
        const value = row[column];
        let color = null;
        if (Number.isNaN(value)) color = fixed.absent;
        else if (!Number.isFinite(value)) color = fixed.broken;
        else if (value === 0) color = fixed.zero;
        else color = gm.shade(gm.scales.viridis, gm.flowShare(flow, value));
        const at = 4 * (column * canvas.width + layer);
        [image.data[at], image.data[at + 1], image.data[at + 2], image.data[at + 3]] = [color[0], color[1], color[2], 255];
      }
    });
    context.putImageData(image, 0, 0);
    history = { flow, dark: gm.dark(), canvas };
    return canvas;
  }

  let labels = { flow: null, texts: [], extents: [] };

  /** Return the names as they are written, and how far each reaches to the left of its place; measured once, in bold. */
  function labelsOf(context, flow) {
    if (labels.flow === flow) return labels;
    context.font = font(true);
    const wide = (text) => context.measureText(text).width;
    const names = flow.names.map((name) => name || "(model)");
    // As long as most of them fit, all are shortened in the same way, so that they stay different.
    const fits = (length) => gm.shortenAll(names, length).filter((text) => wide(text) <= LONGEST).length >= 0.75 * names.length;
    let length = 18;
    while (length > 8 && !fits(length)) length -= 1;
    const texts = gm.shortenAll(names, length).map((text, index) => {
      let short = text;
      for (let own = length - 1; own >= 3 && wide(short) > LONGEST; own -= 1) short = gm.shorten(names[index], own);
      return short;
    });
    labels = { flow, texts, extents: texts.map((text) => wide(text) * Math.cos(ANGLE) + 4) };
    return labels;
  }

  /** Return {left, width} of the picture in all of the canvas, so that the names of its outermost layers have room. */
  function placeOf(context, flow, whole) {
    const width = whole - Math.max(0, Math.ceil(END - whole / flow.names.length / 2));
    const needed = labelsOf(context, flow).extents.map((extent, index) => {
      const place = (index + 0.5) / flow.names.length;
      return (extent - 3 - place * width) / (1 - place);
    });
    const left = Math.ceil(needed.reduce((most, each) => Math.max(most, each), 0));
    return { left, width: width - left };
  }

  const halfWidth = (flow, value) => (value > 0 && Number.isFinite(value) ? 3 + 0.44 * STREAM * gm.flowShare(flow, value) : Number.isFinite(value) ? 1.5 : STREAM / 2 - 4);

  function paintStream(context, flow, column, front, width, palette) {
    const step = width / flow.names.length;
    const middle = STREAM / 2;
    const reached = front * flow.names.length;
    // A layer that this step's gradient has not reached yet still shows the step before, paler.
    const at = (index) => (index < reached ? column : Math.max(0, column - 1));
    flow.values.forEach((row, index) => {
      const value = row[at(index)];
      const x = index * step;
      context.globalAlpha = index < reached ? 1 : 0.3;
      context.fillStyle = gm.flowColor(flow, value, palette);
      if (Number.isNaN(value)) {
        context.fillRect(x, middle - 1, step, 2);
        return;
      }
      const here = halfWidth(flow, value);
      const near = index + 1 < flow.values.length ? flow.values[index + 1][at(index + 1)] : value;
      const next = Number.isNaN(near) || !Number.isFinite(value) || !Number.isFinite(near) ? here : halfWidth(flow, near);
      context.beginPath();
      context.moveTo(x, middle - here);
      context.bezierCurveTo(x + step / 2, middle - here, x + step / 2, middle - next, x + step + 0.5, middle - next);
      context.lineTo(x + step + 0.5, middle + next);
      context.bezierCurveTo(x + step / 2, middle + next, x + step / 2, middle + here, x, middle + here);
      context.fill();
    });
    context.globalAlpha = 1;
    if (front < 1) {
      context.fillStyle = palette.ink;
      context.fillRect(reached * step - 1, 4, 2, STREAM - 8);
      context.beginPath();
      context.arc(reached * step, middle, 5, 0, 2 * Math.PI);
      context.fill();
    }
  }

  function paintLabels(context, flow, width, palette, chosen) {
    const step = width / flow.names.length;
    const stride = Math.max(1, Math.ceil(17 / step));
    const texts = labelsOf(context, flow).texts;
    context.textAlign = "right";
    const place = chosen === null ? -1 : flow.names.indexOf(chosen);
    texts.forEach((text, index) => {
      const mine = index === place;
      const crowded = index % stride !== 0 || (place >= 0 && Math.abs(index - place) < stride);
      if (!mine && crowded) return;
      context.save();
      context.translate((index + 0.5) * step + 3, STREAM + 8);
      context.rotate(-ANGLE);
      context.fillStyle = mine ? palette.ink : palette.soft;
      context.font = font(mine);
      context.fillText(text, 0, 4);
      context.restore();
      if (mine) {
        context.strokeStyle = palette.ink;
        context.strokeRect(index * step + 0.5, 2.5, Math.max(2, step - 1), STREAM - 5);
      }
    });
  }

  function paintHistory(context, flow, column, front, width, palette) {
    const picture = historyOf(flow, palette);
    const top = STREAM + LABELS;
    const row = MOST_ROWS / flow.columns;
    context.imageSmoothingEnabled = false;
    context.globalAlpha = 0.18;
    context.drawImage(picture, 0, top, width, MOST_ROWS);
    context.globalAlpha = 1;
    if (column > 0) context.drawImage(picture, 0, 0, flow.names.length, column, 0, top, width, column * row);
    const reached = Math.round(front * flow.names.length);
    if (reached > 0) {
      context.drawImage(picture, 0, column, reached, 1, 0, top + column * row, (reached * width) / flow.names.length, Math.max(row, 1));
    }
    context.fillStyle = palette.ink;
    context.fillRect(0, top + (column + 1) * row - 0.5, width, 1.5);
  }

  /**
   * Draw one moment.
   *
   * `column` is the recorded step, `front` in [0, 1] how far its gradient has come, `chosen` the name of the layer to mark.
   * Returns where the layers are: {left, width} in pixels.
   */
  gm.paintFlow = function (canvas, flow, column, front, chosen) {
    const palette = gm.palette();
    const whole = canvas.clientWidth;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(whole * scale) || canvas.height !== Math.round(gm.FLOW.height * scale)) {
      canvas.width = Math.round(whole * scale);
      canvas.height = Math.round(gm.FLOW.height * scale);
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, whole, gm.FLOW.height);
    const { left, width } = placeOf(context, flow, whole);
    context.translate(left, 0);
    paintStream(context, flow, column, front, width, palette);
    paintLabels(context, flow, width, palette, chosen);
    paintHistory(context, flow, column, front, width, palette);
    return { left, width };
  };
})(window.gradmedic);
