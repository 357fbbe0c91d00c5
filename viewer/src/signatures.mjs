// The signature of inputs: BLAKE2b (RFC 7693) with a digest of 16 bytes, over structure, leaves and packed
// scalars (FORMAT.md, section 5). Browsers do not offer BLAKE2b. A word of 64 bits is two of 32.

import { packedScalars } from "./packing.mjs";

const BLOCK_BYTES = 128;
const IV = new Uint32Array([
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
]);
const PARAMETERS = 0x01010010; // no key, a digest of 16 bytes
const ORDERS = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
  "0123456789abcdef", "ea489fd61c02b753",
].map((row) => Uint8Array.from(row, (digit) => 2 * parseInt(digit, 16)));

const state = new Uint32Array(16);
const work = new Uint32Array(32);
const block = new Uint8Array(BLOCK_BYTES);
const words = new Uint32Array(32);
const view = new DataView(block.buffer);

function add(a, low, high) {
  const sum = work[a] + low;
  work[a] = sum;
  work[a + 1] += high + (sum > 0xffffffff ? 1 : 0);
}

/** work[a] ^= work[b], rotated to the right by so many bits, and by 32 more if `isSwapped`. */
function turn(a, b, isSwapped, bits) {
  const low = work[a] ^ work[b];
  const high = work[a + 1] ^ work[b + 1];
  const one = isSwapped ? high : low;
  const other = isSwapped ? low : high;
  work[a] = bits === 0 ? one : (one >>> bits) | (other << (32 - bits));
  work[a + 1] = bits === 0 ? other : (other >>> bits) | (one << (32 - bits));
}

function mix(a, b, c, d, x, y) {
  add(a, work[b], work[b + 1]);
  add(a, words[x], words[x + 1]);
  turn(d, a, true, 0);
  add(c, work[d], work[d + 1]);
  turn(b, c, false, 24);
  add(a, work[b], work[b + 1]);
  add(a, words[y], words[y + 1]);
  turn(d, a, false, 16);
  add(c, work[d], work[d + 1]);
  turn(b, c, true, 31);
}

/** Takes the block in; `count` bytes came up to its end. */
function compress(count, isLast) {
  for (let at = 0; at < 32; at++) words[at] = view.getUint32(4 * at, true);
  work.set(state);
  work.set(IV, 16);
  work[24] ^= count;
  work[25] ^= Math.floor(count / 2 ** 32);
  if (isLast) {
    work[28] = ~work[28];
    work[29] = ~work[29];
  }
  for (const order of ORDERS) {
    for (let at = 0; at < 4; at++) mix(2 * at, 8 + 2 * at, 16 + 2 * at, 24 + 2 * at, order[2 * at], order[2 * at + 1]);
    mix(0, 10, 20, 30, order[8], order[9]);
    mix(2, 12, 22, 24, order[10], order[11]);
    mix(4, 14, 16, 26, order[12], order[13]);
    mix(6, 8, 18, 28, order[14], order[15]);
  }
  for (let at = 0; at < 16; at++) state[at] ^= work[at] ^ work[at + 16];
}

/** The digest of parts one after another: a bigint of 128 bits. */
export function blake2b(...parts) {
  state.set(IV);
  state[0] ^= PARAMETERS;
  let filled = 0;
  let count = 0;
  for (const part of parts) {
    for (let at = 0; at < part.length; ) {
      if (filled === BLOCK_BYTES) {
        compress(count, false);
        filled = 0;
      }
      const length = Math.min(BLOCK_BYTES - filled, part.length - at);
      block.set(part.subarray(at, at + length), filled);
      filled += length;
      count += length;
      at += length;
    }
  }
  block.fill(0, filled);
  compress(count, true);
  return state.subarray(0, 4).reduceRight((found, word) => (found << 32n) | BigInt(word), 0n);
}

/** The signature of inputs. `scalars` are packed already. */
export function signatureOf(structure, leaves, scalars) {
  const lengths = new DataView(new ArrayBuffer(16));
  lengths.setUint32(0, structure.length, true);
  lengths.setUint32(8, leaves.length, true);
  return blake2b(new Uint8Array(lengths.buffer), structure, leaves, scalars);
}

/** The signature of the inputs of a record. */
export const signatureOfInputs = ({ structure, leaves, scalars }) => signatureOf(structure, leaves, packedScalars(scalars));
