// Raw deflate (RFC 1951) with a preset dictionary, and zlib streams (RFC 1950). Browsers offer no
// preset dictionary. The size of the result is known before: memory is allocated once, and a stream
// that gives more, or less, is refused. What zlib refuses is refused here too.

import { adler32 } from "./checksums.mjs";
import { damaged } from "./errors.mjs";

const LENGTH_BASE = [
  3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
  163, 195, 227, 258,
];
const LENGTH_BITS = [
  0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];
const DISTANCE_BASE = [
  1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049,
  3073, 4097, 6145, 8193, 12289, 16385, 24577,
];
const DISTANCE_BITS = [
  0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13,
];
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const WINDOW = 32768;
const LONGEST = 15;
const FIRST_BITS = 9;

const broken = () => damaged("deflated bytes cannot be inflated");

/** A Huffman code from the lengths of its symbols: symbols in the order of their codes, how many
 * have each length, and a table of what the next nine bits mean.
 * As in zlib, only a code of distances or literals with a single symbol may be incomplete. */
function codeOf(lengths, mayBeIncomplete) {
  const counts = new Uint16Array(LONGEST + 1);
  for (const length of lengths) counts[length]++;
  const used = lengths.length - counts[0];
  let left = 1;
  for (let length = 1; length <= LONGEST; length++) {
    left = left * 2 - counts[length];
    if (left < 0) throw broken();
  }
  if (left > 0 && used > 0 && !(mayBeIncomplete && used === 1 && counts[1] === 1)) throw broken();
  if (used === 0 && !mayBeIncomplete) throw broken();
  const starts = new Uint16Array(LONGEST + 2);
  const codes = new Uint16Array(LONGEST + 2);
  for (let length = 1; length <= LONGEST; length++) {
    starts[length + 1] = starts[length] + counts[length];
    codes[length + 1] = (codes[length] + counts[length]) << 1;
  }
  const symbols = new Uint16Array(used);
  const table = new Uint16Array(1 << FIRST_BITS);
  const places = starts.slice();
  const next = codes.slice();
  for (let symbol = 0; symbol < lengths.length; symbol++) {
    const length = lengths[symbol];
    if (length === 0) continue;
    symbols[places[length]++] = symbol;
    const code = next[length]++;
    if (length > FIRST_BITS) continue;
    let reversed = 0;
    for (let bit = 0; bit < length; bit++) reversed |= ((code >>> bit) & 1) << (length - 1 - bit);
    for (let at = reversed; at < table.length; at += 1 << length) table[at] = (symbol << 4) | length;
  }
  return { counts, symbols, table };
}

const FIXED_LENGTHS = new Uint8Array(288);
FIXED_LENGTHS.fill(8, 0, 144).fill(9, 144, 256).fill(7, 256, 280).fill(8, 280);
const FIXED = {
  literals: codeOf(FIXED_LENGTHS, false),
  distances: codeOf(new Uint8Array(32).fill(5), false),
};

class Inflater {
  constructor(input, output, filled) {
    this.input = input;
    this.at = 0;
    this.held = 0; // bits that were read and not used
    this.bits = 0; // how many they are
    this.output = output;
    this.filled = filled;
  }

  need(count) {
    while (this.bits < count) {
      if (this.at >= this.input.length) throw broken();
      this.held |= this.input[this.at++] << this.bits;
      this.bits += 8;
    }
  }

  take(count) {
    if (count === 0) return 0;
    this.need(count);
    const value = this.held & ((1 << count) - 1);
    this.held >>>= count;
    this.bits -= count;
    return value;
  }

  symbol(code) {
    while (this.bits < LONGEST && this.at < this.input.length) {
      this.held |= this.input[this.at++] << this.bits;
      this.bits += 8;
    }
    const entry = code.table[this.held & ((1 << FIRST_BITS) - 1)];
    const length = entry & 15;
    if (length !== 0) {
      if (length > this.bits) throw broken();
      this.held >>>= length;
      this.bits -= length;
      return entry >>> 4;
    }
    return this.longSymbol(code);
  }

  /** A symbol bit by bit: its code has more than nine bits, or there is no such code. */
  longSymbol(code) {
    let value = 0;
    let first = 0;
    let index = 0;
    for (let length = 1; length <= LONGEST; length++) {
      value |= this.take(1);
      const count = code.counts[length];
      if (value - count < first) return code.symbols[index + (value - first)];
      index += count;
      first = (first + count) << 1;
      value <<= 1;
    }
    throw broken();
  }

  put(length) {
    if (this.filled + length > this.output.length) {
      throw damaged("deflated bytes become more than they say");
    }
  }

  run() {
    for (let isLast = 0; !isLast; ) {
      isLast = this.take(1);
      const type = this.take(2);
      if (type === 0) this.stored();
      else if (type === 1) this.block(FIXED.literals, FIXED.distances);
      else if (type === 2) this.dynamic();
      else throw broken();
    }
    // Whole bytes that were read ahead belong to what follows.
    this.at -= this.bits >>> 3;
  }

  stored() {
    this.at -= this.bits >>> 3;
    this.held = this.bits = 0;
    const { input, at } = this;
    if (at + 4 > input.length) throw broken();
    const length = input[at] | (input[at + 1] << 8);
    if ((length ^ 0xffff) !== (input[at + 2] | (input[at + 3] << 8))) throw broken();
    if (at + 4 + length > input.length) throw broken();
    this.put(length);
    this.output.set(input.subarray(at + 4, at + 4 + length), this.filled);
    this.filled += length;
    this.at = at + 4 + length;
  }

  dynamic() {
    const literals = this.take(5) + 257;
    const distances = this.take(5) + 1;
    const used = this.take(4) + 4;
    if (literals > 286 || distances > 30) throw broken();
    const small = new Uint8Array(19);
    for (let at = 0; at < used; at++) small[ORDER[at]] = this.take(3);
    const code = codeOf(small, false);
    const lengths = new Uint8Array(literals + distances);
    for (let at = 0; at < lengths.length; ) {
      const symbol = this.symbol(code);
      if (symbol < 16) {
        lengths[at++] = symbol;
        continue;
      }
      if (symbol === 16 && at === 0) throw broken();
      const value = symbol === 16 ? lengths[at - 1] : 0;
      const times = symbol === 16 ? 3 + this.take(2) : symbol === 17 ? 3 + this.take(3) : 11 + this.take(7);
      if (at + times > lengths.length) throw broken();
      lengths.fill(value, at, at + times);
      at += times;
    }
    if (lengths[256] === 0) throw broken();
    this.block(codeOf(lengths.subarray(0, literals), true), codeOf(lengths.subarray(literals), true));
  }

  block(literals, distances) {
    const { output } = this;
    for (;;) {
      const symbol = this.symbol(literals);
      if (symbol < 256) {
        this.put(1);
        output[this.filled++] = symbol;
      } else if (symbol === 256) {
        return;
      } else {
        this.copy(symbol - 257, distances);
      }
    }
  }

  copy(index, distances) {
    if (index >= LENGTH_BASE.length) throw broken();
    const length = LENGTH_BASE[index] + this.take(LENGTH_BITS[index]);
    const symbol = this.symbol(distances);
    if (symbol >= DISTANCE_BASE.length) throw broken();
    const distance = DISTANCE_BASE[symbol] + this.take(DISTANCE_BITS[symbol]);
    if (distance > this.filled) throw broken();
    this.put(length);
    const { output } = this;
    let to = this.filled;
    // Source and target may overlap, which repeats the source.
    for (const end = to + length; to < end; to++) output[to] = output[to - distance];
    this.filled = to;
  }
}

/**
 * What raw deflate packed.
 *
 * @param {Uint8Array} packed exactly the deflated bytes.
 * @param {number} size how many bytes they must become; the caller compared it with a limit.
 * @param {Uint8Array} dictionary up to 32 KiB that stand before the result.
 * @throws {TapeError} damaged
 */
export function inflate(packed, size, dictionary = new Uint8Array(0)) {
  const before = dictionary.subarray(Math.max(0, dictionary.length - WINDOW));
  const output = new Uint8Array(before.length + size);
  output.set(before);
  const inflater = new Inflater(packed, output, before.length);
  inflater.run();
  if (inflater.filled !== output.length || inflater.at !== packed.length) {
    throw damaged("deflated bytes are not as many as they say");
  }
  return output.subarray(before.length);
}

/** What zlib packed, of exactly `size` bytes. */
export function inflateZlib(packed, size) {
  if (packed.length < 6 || (packed[0] & 15) !== 8 || packed[0] >> 4 > 7) throw broken();
  if (((packed[0] << 8) | packed[1]) % 31 !== 0 || packed[1] & 32) throw broken();
  const data = inflate(packed.subarray(2, packed.length - 4), size);
  const end = new DataView(packed.buffer, packed.byteOffset + packed.length - 4, 4);
  if (end.getUint32(0) !== adler32(data)) throw broken();
  return data;
}
