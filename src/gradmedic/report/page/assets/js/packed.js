"use strict";
// Packed arrays: base64 of little-endian numbers, row by row. NaN: not recorded; an infinity: recorded as not finite.
(function (gm) {
  const known = new WeakMap();
  const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

  function bytesOf(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let index = 0; index < letters.length; index += 1) bytes[index] = letters.charCodeAt(index);
    return bytes;
  }

  /** Return a packed array as a typed array of numbers; decoded once. */
  gm.unpack = function (packed) {
    if (!packed) return new Float32Array(0);
    if (known.has(packed)) return known.get(packed);
    const bytes = bytesOf(packed.b);
    const kind = { i4: Int32Array, f4: Float32Array, f8: Float64Array }[packed.t];
    const width = kind.BYTES_PER_ELEMENT;
    if (!LITTLE) for (let at = 0; at + width <= bytes.length; at += width) bytes.subarray(at, at + width).reverse();
    const numbers = new kind(bytes.buffer);
    known.set(packed, numbers);
    return numbers;
  };

  /** Return row `row` of a packed matrix, as a view. */
  gm.unpackRow = function (packed, row) {
    const width = packed.n[packed.n.length - 1];
    return gm.unpack(packed).subarray(row * width, (row + 1) * width);
  };
})(window.gradmedic);
