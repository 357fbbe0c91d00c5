// The header of a blob: names, dtypes, shapes and offsets of its tensors (FORMAT.md, section 7).

import { characters } from "./documents.mjs";
import { damaged, invalid, overLimit } from "./errors.mjs";
import {
  MAX_HEADER_BRACKETS, MAX_HEADER_BYTES, MAX_HEADER_NESTING, MAX_LEAVES, MAX_RANK, MAX_TORCH_NAME,
} from "./limits.mjs";

const BITS = {
  BOOL: 8, U8: 8, I8: 8, F8_E5M2: 8, F8_E4M3: 8, F8_E8M0: 8, F8_E4M3FNUZ: 8, F8_E5M2FNUZ: 8,
  I16: 16, U16: 16, F16: 16, BF16: 16, I32: 32, U32: 32, F32: 32, C64: 64, F64: 64, I64: 64,
  U64: 64, F4: 4, F6_E2M3: 6, F6_E3M2: 6,
};

export const LENGTH_BYTES = 8;
const NATURAL = /^(?:-?0|[1-9][0-9]*)$/;
const MAX_SIZE = 2n ** 63n - 1n;
const MAX_DIGITS = 19; // of MAX_SIZE: a number may have millions, which take long to become one

/** How many bytes the header has, with its length field; `prefix` are the first bytes of the blob. */
export function headerSize(prefix, blobBytes) {
  if (prefix.length < LENGTH_BYTES || blobBytes < LENGTH_BYTES) {
    throw damaged(`a blob of ${blobBytes} bytes is too short for a header`);
  }
  const length = new DataView(prefix.buffer, prefix.byteOffset, LENGTH_BYTES).getBigUint64(0, true);
  if (length > MAX_HEADER_BYTES) {
    throw overLimit(`a safetensors header has ${length} bytes (at most ${MAX_HEADER_BYTES})`);
  }
  if (LENGTH_BYTES + Number(length) > blobBytes) {
    throw damaged(`a header has ${length} bytes, but its blob has ${blobBytes}`);
  }
  return LENGTH_BYTES + Number(length);
}

/**
 * The tensors of a blob by name: each with `dtype`, `shape` (text of its sizes), `begin` and `end`
 * (offsets in the data, which begins after the header), and `isKnown`: whether this reader knows the dtype.
 *
 * @param {Uint8Array} header with its length field.
 * @param {number} blobBytes size of the blob.
 * @throws {TapeError} damaged, invalid or limit
 */
export function entriesOf(header, blobBytes) {
  const json = header.subarray(LENGTH_BYTES);
  let brackets = 0;
  for (const byte of json) if (byte === 0x5b || byte === 0x7b) brackets++;
  if (brackets > MAX_HEADER_BRACKETS) throw overLimit(`a header has more than ${MAX_HEADER_BRACKETS} brackets`);
  if (json[0] !== 0x7b) throw invalid("the safetensors header does not start with a brace");
  const tensors = new HeaderParser(textOf(json)).object();
  tensors.delete("__metadata__");
  if (tensors.size > MAX_LEAVES) throw overLimit(`a blob has ${tensors.size} tensors (at most ${MAX_LEAVES})`);
  const entries = new Map();
  for (const [name, facts] of tensors) entries.set(name, entryOf(name, facts));
  checkCoverage(entries, blobBytes - header.length);
  return entries;
}

function textOf(json) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(json);
  } catch {
    throw damaged("the safetensors header is not UTF-8");
  }
}

/** A number of JSON as it is written: JavaScript's own parser would round it. */
class NumberText {
  constructor(text) {
    this.text = text;
  }
}

const TOKEN = /[ \t\n\r]*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(true|false|null))/y;

/** JSON with numbers as text, in which no name of an object may stand twice. */
class HeaderParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  object() {
    const found = this.value(this.token(), 0);
    if (!/^[ \t\n\r]*$/.test(this.text.slice(this.at))) throw notJson();
    return found;
  }

  token() {
    TOKEN.lastIndex = this.at;
    const found = TOKEN.exec(this.text);
    if (found === null) throw notJson();
    this.at = TOKEN.lastIndex;
    return found;
  }

  value([, mark, text, number, word], depth) {
    if (text !== undefined) return JSON.parse(text);
    if (number !== undefined) return new NumberText(number);
    if (word !== undefined) return word === "null" ? null : word === "true";
    if (depth === MAX_HEADER_NESTING) throw notJson();
    if (mark === "{") return this.members(depth);
    if (mark === "[") return this.elements(depth);
    throw notJson();
  }

  members(depth) {
    const found = new Map();
    let token = this.token();
    if (token[1] === "}") return found;
    for (;;) {
      if (token[2] === undefined) throw notJson();
      const name = JSON.parse(token[2]);
      if (this.token()[1] !== ":") throw notJson();
      const value = this.value(this.token(), depth + 1);
      if (found.has(name)) throw invalid("the safetensors header names a tensor twice");
      found.set(name, value);
      const [, mark] = this.token();
      if (mark === "}") return found;
      if (mark !== ",") throw notJson();
      token = this.token();
    }
  }

  elements(depth) {
    const found = [];
    let token = this.token();
    if (token[1] === "]") return found;
    for (;;) {
      found.push(this.value(token, depth + 1));
      const [, mark] = this.token();
      if (mark === "]") return found;
      if (mark !== ",") throw notJson();
      token = this.token();
    }
  }
}

const notJson = () => damaged("the safetensors header is not JSON");

function naturals(value) {
  if (!Array.isArray(value)) return null;
  if (!value.every((one) => one instanceof NumberText && one.text.length <= MAX_DIGITS && NATURAL.test(one.text))) return null;
  const found = value.map((one) => BigInt(one.text));
  return found.every((one) => one <= MAX_SIZE) ? found : null;
}

function entryOf(name, facts) {
  const shown = name.slice(0, 80);
  if (!(facts instanceof Map)) throw invalid(`tensor ${shown} is not described by an object`);
  const dtype = facts.get("dtype");
  const shape = naturals(facts.get("shape"));
  const offsets = naturals(facts.get("data_offsets"));
  if (typeof dtype !== "string" || dtype === "" || characters(dtype) > MAX_TORCH_NAME || /\p{Surrogate}/u.test(dtype)) {
    throw invalid(`tensor ${shown} has no valid dtype`);
  }
  // One axis more than a tensor may have: complex numbers may have a last axis of 2.
  if (shape === null || shape.length > MAX_RANK + 1) throw invalid(`tensor ${shown} has no valid shape`);
  if (offsets === null || offsets.length !== 2) throw invalid(`tensor ${shown} has no valid data_offsets`);
  const [begin, end] = offsets;
  if (!Object.hasOwn(BITS, dtype)) {
    if (end < begin) throw invalid(`tensor ${shown} ends before it begins`);
    return { dtype, shape: shape.join(), begin: Number(begin), end: Number(end), isKnown: false };
  }
  const bits = shape.reduce((product, size) => product * size, BigInt(BITS[dtype]));
  if (bits !== (end - begin) * 8n) throw invalid(`tensor ${shown}: ${end - begin} bytes for its dtype and shape`);
  return { dtype, shape: shape.join(), begin: Number(begin), end: Number(end), isKnown: true };
}

function checkCoverage(entries, dataBytes) {
  const sorted = [...entries].sort(([, one], [, other]) => one.begin - other.begin || one.end - other.end);
  let position = 0;
  for (const [name, { begin, end }] of sorted) {
    if (begin !== position) throw invalid(`tensor ${name.slice(0, 80)} overlaps another or leaves a gap`);
    position = end;
  }
  if (position !== dataBytes) {
    throw invalid(`there are ${dataBytes} bytes of tensor data, but ${position} are described`);
  }
}
