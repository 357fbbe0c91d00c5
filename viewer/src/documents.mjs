// msgpack documents under limits, and the envelopes around them (FORMAT.md, section 3).
//
// The vendored decoder reads the bytes. What it is too lenient for is made strict here: announced
// lengths, text that is not UTF-8, keys that stand twice, and floats, which JavaScript cannot tell
// from ints: a float becomes a Float, an int a number (a bigint beyond 2**53 - 1), a map a plain object,
// bin a Uint8Array.

import { Decoder } from "../vendor/msgpack/Decoder.mjs";
import { crc32 } from "./checksums.mjs";
import { TapeError, damaged, overLimit, unsupported } from "./errors.mjs";
import {
  MAX_DOCUMENT_BYTES, MAX_DOCUMENT_NESTING, MAX_DOCUMENT_VALUES, MAX_INT_BYTES, MAX_MEMBER_BYTES,
} from "./limits.mjs";

/** A float of a tape. Of a NaN, which JavaScript does not tell from another one, it has the bits. */
export class Float {
  constructor(value, bits) {
    this.value = value;
    if (Number.isNaN(value)) this.bits = bits;
  }
}

/** Text with lone surrogates: its bytes as extension type 2 has them, and as JavaScript's text. */
export class SurrogateText {
  constructor(bytes, text, length) {
    this.bytes = bytes;
    this.text = text;
    this.length = length; // in characters
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const MAX_FAST_TEXT = 48;
const MAX_SAFE = BigInt(Number.MAX_SAFE_INTEGER);

/** An int as a number where a number is exact, else as a bigint. */
export function plainInt(value) {
  return value >= -MAX_SAFE && value <= MAX_SAFE ? Number(value) : value;
}

export const isInt = (value) => typeof value === "number" || typeof value === "bigint";

/** Whether a decoded value is a map. Read its fields with fieldOf: it may have a prototype. */
export function isMap(value) {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

/** A field of a map; undefined if it is absent. */
export const fieldOf = (map, name) => (Object.hasOwn(map, name) ? map[name] : undefined);

function textOf(bytes, start, end) {
  if (end - start <= MAX_FAST_TEXT) {
    let text = "";
    let at = start;
    for (; at < end && bytes[at] < 128; at++) text += String.fromCharCode(bytes[at]);
    if (at === end) return text;
  }
  try {
    return UTF8.decode(bytes.subarray(start, end));
  } catch {
    throw damaged("a text is not valid UTF-8");
  }
}

function bigIntOf(bytes) {
  let hex = "";
  for (const byte of bytes) hex += byte.toString(16).padStart(2, "0");
  const value = BigInt(`0x${hex}`);
  return bytes[0] & 128 ? value - (1n << BigInt(8 * bytes.length)) : value;
}

/** Text in UTF-8 that may have surrogates, each as three bytes. */
function wideText(bytes) {
  const isSurrogate = (at) => bytes[at] === 0xed && bytes[at + 1] >= 0xa0 && bytes[at + 2] >> 6 === 2;
  let text = "";
  let length = 0;
  let from = 0;
  let found = false;
  for (let at = 0; at <= bytes.length; at++) {
    if (at < bytes.length && !isSurrogate(at)) continue;
    const part = textOf(bytes, from, at);
    text += part;
    length += characters(part);
    if (at === bytes.length) break;
    const unit = 0xd000 | ((bytes[at + 1] & 63) << 6) | (bytes[at + 2] & 63);
    const before = text.charCodeAt(text.length - 1);
    if (unit >= 0xdc00 && before >= 0xd800 && before < 0xdc00) throw damaged("a text has one character as two surrogates");
    text += String.fromCharCode(unit);
    length += 1;
    found = true;
    from = at + 3;
    at += 2;
  }
  return found ? new SurrogateText(bytes.slice(), text, length) : text;
}

/** How many characters a text has, as Python counts them. */
export function characters(text) {
  if (text instanceof SurrogateText) return text.length;
  let count = text.length;
  for (let at = 0; at < text.length - 1; at++) {
    const unit = text.charCodeAt(at);
    if (unit >= 0xd800 && unit < 0xdc00) {
      count -= 1;
      at += 1;
    }
  }
  return count;
}

const extensionCodec = {
  decode(data, type) {
    if (type === 1 && data.length > 0 && data.length <= MAX_INT_BYTES) return plainInt(bigIntOf(data));
    if (type === 2) return wideText(data);
    if (type === 1) throw damaged(`an int of ${data.length} bytes`);
    throw unsupported(`a document has extension type ${type}`);
  },
};

// The decoder refuses this key, because it would change a prototype. A map with it has none here.
const PROTO = "__proto__";
const PROTO_KEY = new String(PROTO);

/** The vendored decoder, made strict. It overrides methods that its version 3.1.3 calls. */
class StrictDecoder extends Decoder {
  constructor() {
    super({ useBigInt64: true, extensionCodec, keyDecoder: null });
    this.mapKeyConverter = (key) => this.newKey(key);
    this.announced = 1;
  }

  document(bytes) {
    this.announced = 1;
    return this.decode(bytes);
  }

  announce(count) {
    this.announced += count;
    if (this.announced > this.bytes.length) {
      throw damaged(`a document of ${this.bytes.length} bytes announces ${this.announced} values`);
    }
    if (this.announced > MAX_DOCUMENT_VALUES) {
      throw overLimit(`a document has more than ${MAX_DOCUMENT_VALUES} values`);
    }
    if (this.stack.length >= MAX_DOCUMENT_NESTING) throw damaged("a document is nested too deeply");
  }

  pushArrayState(size) {
    this.announce(size);
    super.pushArrayState(size);
  }

  pushMapState(size) {
    this.announce(2 * size);
    super.pushMapState(size);
  }

  newKey(key) {
    const state = this.stack.top();
    const name = key === PROTO_KEY ? PROTO : key;
    if (typeof name !== "string") throw damaged("a key of a map is not text");
    if (Object.hasOwn(state.map, name)) throw damaged("a map holds the same key twice");
    if (name === PROTO) state.map = Object.assign(Object.create(null), state.map);
    return name;
  }

  decodeUtf8String(length, offset) {
    const start = this.pos + offset;
    if (start + length > this.bytes.length) throw damaged("a document ends too early");
    const text = textOf(this.bytes, start, start + length);
    this.pos = start + length;
    return text === PROTO && this.stateIsMapKey() ? PROTO_KEY : text;
  }

  readF32() {
    return new Float(super.readF32());
  }

  readF64() {
    const { pos } = this;
    const value = super.readF64();
    return new Float(value, Number.isNaN(value) ? this.view.getBigUint64(pos) : undefined);
  }

  readU64AsBigInt() {
    return plainInt(super.readU64AsBigInt());
  }

  readI64AsBigInt() {
    return plainInt(super.readI64AsBigInt());
  }
}

const decoder = new StrictDecoder();

/**
 * One msgpack document, of at most so many bytes.
 *
 * @throws {TapeError} damaged or limit
 */
export function unpack(bytes, most = MAX_DOCUMENT_BYTES) {
  if (bytes.length > most) {
    throw overLimit(`a document has ${bytes.length} bytes (at most ${most})`);
  }
  try {
    return decoder.document(bytes);
  } catch (error) {
    if (error instanceof TapeError) throw error;
    throw damaged(`not a valid msgpack document: ${error.message}`);
  }
}

/**
 * The payload of an envelope, whose checksum holds.
 *
 * @throws {TapeError} damaged or limit
 */
export function openEnvelope(bytes) {
  return envelopeOf(bytes).payload;
}

/** The same, and the `last` element of the envelope. */
export function envelopeOf(bytes) {
  const found = unpack(bytes, MAX_MEMBER_BYTES);
  const [checksum, payload] = Array.isArray(found) ? found : [];
  if (!isInt(checksum) || !(payload instanceof Uint8Array)) {
    throw damaged("not an envelope [crc32, payload]");
  }
  if (crc32(payload) !== checksum) {
    throw damaged("the checksum of the member does not match its bytes");
  }
  return { payload, last: found.at(-1) };
}
