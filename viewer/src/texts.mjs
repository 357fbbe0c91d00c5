// Values of a tape as short text for people.

import { Float, SurrogateText } from "./documents.mjs";
import { grouped } from "./numbers.mjs";

const MOST_CHARACTERS = 4000;

export const plainText = (value) => (value instanceof SurrogateText ? value.text : value);

export function hexText(bytes, most = 64) {
  const shown = Array.from(bytes.subarray(0, most), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return bytes.length > most ? `${shown}… (${grouped(bytes.length)} bytes)` : shown;
}

/** A scalar as Python would write it, cut if it is long. */
export function scalarText(value, most = MOST_CHARACTERS) {
  if (value === null || value === undefined) return "None";
  if (value instanceof Float) return floatText(value.value);
  if (value instanceof Uint8Array) return `b"${hexText(value)}"`;
  if (Array.isArray(value)) return `(${value.map((part) => scalarText(part, most)).join(", ")})`;
  if (typeof value === "boolean") return value ? "True" : "False";
  const text = plainText(value);
  if (typeof text !== "string") return String(text).slice(0, most);
  const cut = text.length > most ? `${text.slice(0, most)}… (${grouped(text.length)} characters)` : text;
  return JSON.stringify(cut).replaceAll("\\u202f", "\u202f");
}

function floatText(value) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  return Number.isInteger(value) && Math.abs(value) < 1e16 ? `${value}.0` : String(value);
}

const MANTISSA_BITS = {
  float32: 23, complex64: 23, float16: 10, complex32: 10, bfloat16: 7, bcomplex32: 7, float8_e4m3fn: 3,
  float8_e4m3fnuz: 3, float8_e5m2: 2, float8_e5m2fnuz: 2, float8_e8m0fnu: 0,
};

/** A float of a tensor: as few digits as tell it from its neighbours of this dtype; all of them if it has eight bits. */
export function elementText(dtype, value) {
  const bits = MANTISSA_BITS[dtype];
  if (bits === undefined || bits <= 3 || !Number.isFinite(value) || value === 0) return floatText(value);
  const room = Math.abs(value) * 2 ** -(bits + 2);
  for (let digits = 1; digits < 12; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.abs(rounded - value) <= room) return floatText(rounded);
  }
  return floatText(value);
}

/** `float32[2, 3]` */
export const leafText = (leaf) => `${leaf.dtype}[${leaf.shape.join(", ")}]`;
