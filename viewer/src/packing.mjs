// Scalars as a msgpack array, in the shortest form, as a writer packs them.

import { Float, SurrogateText, isInt } from "./documents.mjs";

const UTF8 = new TextEncoder();
const NONE = Uint8Array.of(0x90);

/** The bytes of a number, the highest first. */
function bytesOf(value, count) {
  const found = new Array(count);
  for (let rest = BigInt(value), at = count - 1; at >= 0; at--, rest >>= 8n) found[at] = Number(rest & 255n);
  return found;
}

/** A head for so many bytes or elements: the first of `forms` ([most, head, bytes of the length]) with room. */
function headOf(size, forms) {
  const [, head, width] = forms.find(([most]) => size <= most);
  return width === 0 ? [head + size] : [head, ...bytesOf(size, width)];
}

const ARRAY = [[15, 0x90, 0], [0xffff, 0xdc, 2], [Infinity, 0xdd, 4]];
const TEXT = [[31, 0xa0, 0], [0xff, 0xd9, 1], [0xffff, 0xda, 2], [Infinity, 0xdb, 4]];
const BIN = [[0xff, 0xc4, 1], [0xffff, 0xc5, 2], [Infinity, 0xc6, 4]];
const EXTENSION = [[0xff, 0xc7, 1], [0xffff, 0xc8, 2], [Infinity, 0xc9, 4]];
const FIXED = new Map([[1, 0xd4], [2, 0xd5], [4, 0xd6], [8, 0xd7], [16, 0xd8]]);

function extension(type, bytes) {
  const fixed = FIXED.get(bytes.length);
  return [fixed === undefined ? headOf(bytes.length, EXTENSION) : [fixed], [type], bytes];
}

function packedInt(value) {
  if (value >= 0) {
    if (value < 128) return [[Number(value)]];
    const width = [1, 2, 4, 8].findIndex((bytes) => value < 2n ** BigInt(8 * bytes));
    if (width >= 0) return [[0xcc + width], bytesOf(value, 2 ** width)];
  } else {
    if (value >= -32) return [[256 + Number(value)]];
    const width = [1, 2, 4, 8].findIndex((bytes) => value >= -(2n ** BigInt(8 * bytes - 1)));
    if (width >= 0) return [[0xd0 + width], bytesOf(value, 2 ** width)];
  }
  const bits = (value < 0 ? -value : value).toString(2).length;
  return extension(1, bytesOf(value, Math.floor(bits / 8) + 1));
}

function packed(value) {
  if (isInt(value)) return packedInt(value);
  if (value instanceof Float) {
    const view = new DataView(new ArrayBuffer(8));
    view.setFloat64(0, value.value);
    if (value.bits !== undefined) view.setBigUint64(0, value.bits);
    return [[0xcb], new Uint8Array(view.buffer)];
  }
  if (value instanceof SurrogateText) return extension(2, value.bytes);
  if (value instanceof Uint8Array) return [headOf(value.length, BIN), value];
  if (Array.isArray(value)) return partsOfArray(value);
  if (value === null || typeof value === "boolean") return [[value === null ? 0xc0 : value ? 0xc3 : 0xc2]];
  const text = UTF8.encode(value);
  return [headOf(text.length, TEXT), text];
}

const partsOfArray = (values) => [headOf(values.length, ARRAY), ...values.flatMap(packed)];

/** The scalars of a tree: a msgpack array. */
export const packedScalars = (values) => (values.length === 0 ? NONE : packedArray(values));

const sizeOf = (parts) => parts.reduce((sum, part) => sum + part.length, 0);

/** How many bytes a key takes that is no text. */
export const packedSize = (key) => sizeOf(Array.isArray(key) ? partsOfArray(key) : packed(key));

/** A msgpack array of scalars, and of arrays of these. */
export function packedArray(values) {
  const parts = partsOfArray(values);
  const found = new Uint8Array(sizeOf(parts));
  let at = 0;
  for (const part of parts) {
    found.set(part, at);
    at += part.length;
  }
  return found;
}
