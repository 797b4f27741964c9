// Binary messages: the length of a header, the header in JSON, then arrays. See frames.py.

const KINDS = { f4: Float32Array, u1: Uint8Array };

export function parse(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  header.arrays = header.arrays.map(([kind, size]) => {
    const array = new KINDS[kind](buffer, at, size);
    at += Math.ceil(array.byteLength / 4) * 4;
    return array;
  });
  return header;
}

/** A table of (columns, rows), one array for each column; the first holds the steps. */
export function columns(flat, count) {
  const rows = flat.length / count;
  return Array.from({ length: count }, (_, column) => flat.subarray(column * rows, (column + 1) * rows));
}
