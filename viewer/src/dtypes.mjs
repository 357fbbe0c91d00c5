// From a leaf to its bytes, and from bytes to elements (FORMAT.md, section 7).

import { invalid } from "./errors.mjs";

const SUB_BYTE = ["int", "uint"].flatMap((sign) => [1, 2, 3, 4, 5, 6, 7].map((bits) => sign + bits));

/** By dtype of torch: the dtype of the entry in the blob, the sizes that each element adds to the
 * shape, and the bytes of an element. */
const STORED = new Map([
  ["bool", "BOOL"], ["uint8", "U8"], ["int8", "I8"], ["int16", "I16"], ["uint16", "U16"],
  ["int32", "I32"], ["uint32", "U32"], ["int64", "I64"], ["uint64", "U64"], ["float16", "F16"],
  ["bfloat16", "BF16"], ["float32", "F32"], ["float64", "F64"], ["complex64", "C64"],
  ["float8_e4m3fn", "F8_E4M3"], ["float8_e5m2", "F8_E5M2"], ["float8_e4m3fnuz", "F8_E4M3FNUZ"],
  ["float8_e5m2fnuz", "F8_E5M2FNUZ"], ["qint8", "I8"], ["quint8", "U8"], ["qint32", "I32"],
  ["complex128", "F64", 2], ["complex32", "F16", 2], ["bcomplex32", "BF16", 2], ["bits16", "U8", 2],
  ...["float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2", ...SUB_BYTE]
    .map((name) => [name, "U8", 1]),
].map(([name, entry, trailing]) => [name, { entry, trailing: trailing ?? null }]));

const ENTRY_BYTES = {
  BOOL: 1, U8: 1, I8: 1, I16: 2, U16: 2, I32: 4, U32: 4, I64: 8, U64: 8, F16: 2, BF16: 2, F32: 4,
  F64: 8, C64: 8, F8_E4M3: 1, F8_E5M2: 1, F8_E4M3FNUZ: 1, F8_E5M2FNUZ: 1,
};

/** How the value of a leaf is stored: dtype and shape (as text) of its entry, and the bytes of an
 * element; null for a dtype without an encoding. */
export function storedAs(leaf) {
  const found = STORED.get(leaf.dtype);
  if (found === undefined) return null;
  const shape = storedShape(leaf);
  if (found.trailing !== null) shape.push(found.trailing);
  return { dtype: found.entry, shape: shape.join(), width: elementBytes(leaf.dtype) };
}

/** The bytes of an element; null for a dtype without an encoding. */
export function elementBytes(dtype) {
  const found = STORED.get(dtype);
  return found === undefined ? null : ENTRY_BYTES[found.entry] * (found.trailing ?? 1);
}

/** The sizes as they are stored: an expanded axis once. */
export const storedShape = (leaf) => leaf.shape.map((size, axis) => (leaf.expanded.includes(axis) ? 1 : size));

/** A minifloat of eight bits: bits of the mantissa, bias, bytes that are NaN, and whether the largest
 * exponent means infinity and NaN, as in IEEE 754. */
const EIGHT_BITS = {
  float8_e4m3fn: [3, 7, [0x7f, 0xff], false],
  float8_e5m2: [2, 15, [], true],
  float8_e4m3fnuz: [3, 8, [0x80], false],
  float8_e5m2fnuz: [2, 16, [0x80], false],
};

function eightBits(dtype) {
  const [mantissaBits, bias, nans, hasInfinity] = EIGHT_BITS[dtype];
  return (view, at) => {
    const byte = view.getUint8(at);
    if (nans.includes(byte)) return NaN;
    const sign = byte & 0x80 ? -1 : 1;
    const exponent = (byte & 0x7f) >> mantissaBits;
    const mantissa = byte & ((1 << mantissaBits) - 1);
    if (hasInfinity && exponent === 0x7f >> mantissaBits) return mantissa ? NaN : sign * Infinity;
    const fraction = mantissa / (1 << mantissaBits);
    if (exponent === 0) return sign * fraction * 2 ** (1 - bias);
    return sign * (1 + fraction) * 2 ** (exponent - bias);
  };
}

function half(view, at) {
  const bits = view.getUint16(at, true);
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return exponent === 0 ? sign * mantissa * 2 ** -24 : sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

const scratch = new DataView(new ArrayBuffer(4));

/** A bfloat16 is the upper half of a float32. */
function brain(view, at) {
  scratch.setUint32(0, view.getUint16(at, true) << 16);
  return scratch.getFloat32(0);
}

function power(view, at) {
  const byte = view.getUint8(at);
  return byte === 255 ? NaN : 2 ** (byte - 127);
}

const float32 = (view, at) => view.getFloat32(at, true);
const float64 = (view, at) => view.getFloat64(at, true);
const FLOATS = {
  float16: half, bfloat16: brain, float32, float64, float8_e8m0fnu: power,
  ...Object.fromEntries(Object.keys(EIGHT_BITS).map((dtype) => [dtype, eightBits(dtype)])),
};
const COMPLEX = { complex32: half, bcomplex32: brain, complex64: float32, complex128: float64 };
const INTS = {
  uint8: (view, at) => view.getUint8(at), int8: (view, at) => view.getInt8(at),
  uint16: (view, at) => view.getUint16(at, true), int16: (view, at) => view.getInt16(at, true),
  uint32: (view, at) => view.getUint32(at, true), int32: (view, at) => view.getInt32(at, true),
  uint64: (view, at) => view.getBigUint64(at, true), int64: (view, at) => view.getBigInt64(at, true),
};
Object.assign(INTS, { qint8: INTS.int8, quint8: INTS.uint8, qint32: INTS.int32 });

function bool(view, at) {
  const byte = view.getUint8(at);
  if (byte > 1) throw invalid("a bool that is neither 0 nor 1");
  return byte === 1;
}

/**
 * Every element that stands in bytes, in their order.
 *
 * @returns {{kind: string, values: Array}} kind `bool`; `int` (numbers and bigints); `float`;
 *   `complex` (pairs of floats); or `bits` (Uint8Arrays of each element).
 */
export function elementsIn(dtype, bytes) {
  const width = elementBytes(dtype);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const each = (read) => Array.from({ length: bytes.length / width }, (_, at) => read(view, at * width));
  if (dtype === "bool") return { kind: "bool", values: each(bool) };
  if (dtype in INTS) return { kind: "int", values: each(INTS[dtype]) };
  if (dtype in FLOATS) return { kind: "float", values: each(FLOATS[dtype]) };
  if (dtype in COMPLEX) {
    const part = COMPLEX[dtype];
    return { kind: "complex", values: each((_, at) => [part(view, at), part(view, at + width / 2)]) };
  }
  return { kind: "bits", values: each((_, at) => bytes.subarray(at, at + width)) };
}

/** Whether a dtype is one of quantized tensors, which need a quantizer. */
export const isQuantized = (dtype) => ["qint8", "quint8", "qint32"].includes(dtype);
