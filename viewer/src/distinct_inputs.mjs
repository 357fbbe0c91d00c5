// The distinct inputs of the calls of a tape, each with a number. Most calls have inputs that an
// earlier call had: their trees are decoded, described and hashed once.

import { NOT_NUMBERED } from "./columns.mjs";
import { hashOf } from "./hashing.mjs";
import { MAX_ROWS } from "./limits.mjs";
import { bytesKey } from "./nesting.mjs";
import { packedScalars } from "./packing.mjs";

const MOST_BYTES = 64 * 1024 * 1024;

export function areEqual(one, other) {
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at++) if (one[at] !== other[at]) return false;
  return true;
}

export class DistinctInputs {
  constructor() {
    this.numbers = new Map(); // by hash
    this.entries = []; // { tree, calls, first, last } by number
    this.parts = new Map(); // structures and leaves, each once
    this.bytes = 0;
  }

  /** How many calls have inputs of which hash. */
  counts() {
    return new Map(Array.from(this.numbers, ([hash, number]) => [hash, this.entries[number].calls]));
  }

  /** Whether the inputs of a record have this hash: they do if inputs that have it are equal. */
  hasHash(hash, { structure, leaves, scalars }) {
    const known = this.entries[this.numbers.get(hash)];
    const packed = packedScalars(scalars);
    if (known !== undefined) {
      return areEqual(known.tree.structure, structure) && areEqual(known.tree.leaves, leaves) && areEqual(known.packed, packed);
    }
    return hashOf(structure, leaves, packed) === hash;
  }

  /** The number of the inputs of a call; NOT_NUMBERED if there are too many different ones. */
  numberOf(hash, tree, call) {
    const number = this.numbers.get(hash) ?? this.add(hash, tree);
    if (number !== NOT_NUMBERED) this.count(number, BigInt(call));
    return number;
  }

  add(hash, { structure, leaves, scalars }) {
    const packed = packedScalars(scalars);
    const tree = { structure: this.own(structure), leaves: this.own(leaves), scalars: scalars.map(own), ranges: [] };
    this.bytes += packed.length;
    if (this.entries.length >= MAX_ROWS || this.bytes > MOST_BYTES) return NOT_NUMBERED;
    this.numbers.set(hash, this.entries.length);
    return this.entries.push({ tree, packed, calls: 0n, first: null, last: null }) - 1;
  }

  /** Bytes that do not hold the memory of a whole group. */
  own(part) {
    const key = bytesKey(part);
    const known = this.parts.get(key);
    if (known !== undefined) return known;
    this.bytes += part.length;
    if (this.bytes > MOST_BYTES) return part;
    const made = part.slice();
    this.parts.set(key, made);
    return made;
  }

  count(number, call) {
    const entry = this.entries[number];
    entry.calls += 1n;
    if (entry.first === null || call < entry.first) entry.first = call;
    if (entry.last === null || call > entry.last) entry.last = call;
  }

  /** Counts again, after calls were removed. */
  recount({ length, numbers, inputs }) {
    for (const entry of this.entries) Object.assign(entry, { calls: 0n, first: null, last: null });
    for (let at = 0; at < length; at++) if (inputs[at] !== NOT_NUMBERED) this.count(inputs[at], numbers[at]);
  }
}

const own = (value) => (value instanceof Uint8Array ? value.slice() : value);
