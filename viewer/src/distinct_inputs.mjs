// The distinct inputs of the calls of a tape, each with a number. Most calls have inputs that an
// earlier call had: their trees are decoded, described and hashed once.

import { NOT_NUMBERED } from "./columns.mjs";
import { overLimit } from "./errors.mjs";
import { MAX_ROWS } from "./limits.mjs";
import { areEqual, bytesKey } from "./nesting.mjs";
import { packedScalars } from "./packing.mjs";
import { signatureOf } from "./signatures.mjs";

const MOST_BYTES = 64 * 1024 * 1024;
const MOST_HASHED = 256 * 1024 * 1024; // of a small file, whose records may share one large structure
const TIMES_HASHED = 128;

export class DistinctInputs {
  /** @param {number} size of the file. */
  constructor(size) {
    this.room = Math.max(MOST_HASHED, TIMES_HASHED * size); // how many bytes are hashed at most
    this.numbers = new Map(); // by signature
    this.entries = []; // { tree, calls, first, last, raised } by number
    this.parts = new Map(); // structures and leaves, each once
    this.known = new WeakMap(); // which of these a structure or leaves of a group equal
    this.recent = new Map(); // by length, because most groups share them
    this.bytes = 0;
  }

  /** By the signature of inputs the calls with them: how many, the first and the last number, how many raised, and the ranges of those that did not. */
  counts() {
    return new Map(Array.from(this.numbers, ([signature, number]) => {
      const { calls, first, last, raised, ranges } = this.entries[number];
      return [signature, { calls, first, last, raised, ranges }];
    }));
  }

  /**
   * Whether the inputs of a record have this signature: they do if inputs that have it are equal.
   *
   * @throws {TapeError} limit
   */
  hasSignature(signature, { structure, leaves, scalars }) {
    const found = this.entries[this.numbers.get(signature)];
    const packed = packedScalars(scalars);
    if (found !== undefined) {
      return found.tree.structure === this.own(structure) && found.tree.leaves === this.own(leaves) && areEqual(found.packed, packed);
    }
    this.room -= structure.length + leaves.length + packed.length;
    if (this.room < 0) throw overLimit("the inputs of all calls are too large together");
    return signatureOf(structure, leaves, packed) === signature;
  }

  /** The number of the inputs of a call; NOT_NUMBERED if there are too many different ones. */
  numberOf(signature, tree, call, hasRaised) {
    const number = this.numbers.get(signature) ?? this.add(signature, tree);
    if (number !== NOT_NUMBERED) addTo(this.entries[number], BigInt(call), hasRaised, tree.ranges);
    return number;
  }

  add(signature, { structure, leaves, scalars }) {
    const packed = packedScalars(scalars);
    const tree = { structure: this.own(structure), leaves: this.own(leaves), scalars: scalars.map(own), ranges: [] };
    this.bytes += packed.length;
    if (this.entries.length >= MAX_ROWS || this.bytes > MOST_BYTES) return NOT_NUMBERED;
    this.numbers.set(signature, this.entries.length);
    return this.entries.push({ tree, packed, ...noCalls() }) - 1;
  }

  /** The same object for equal bytes. It does not hold the memory of a whole group. */
  own(part) {
    const known = this.known.get(part);
    if (known !== undefined) return known;
    const found = this.interned(part);
    this.known.set(part, found);
    return found;
  }

  interned(part) {
    const recent = this.recent.get(part.length);
    if (recent !== undefined && areEqual(recent, part)) return recent;
    const found = this.unique(part);
    if (found !== part) this.recent.set(part.length, found);
    return found;
  }

  unique(part) {
    const key = bytesKey(part);
    const found = this.parts.get(key);
    if (found !== undefined) return found;
    this.bytes += part.length;
    if (this.bytes > MOST_BYTES) return part;
    const made = part.slice();
    this.parts.set(key, made);
    return made;
  }

}

/** The counts of calls with the same inputs, before there is one. */
export const noCalls = () => ({ calls: 0n, first: null, last: null, raised: 0n, ranges: new Map() });

/** Counts a call with the others that have its inputs. */
export function addTo(counts, call, hasRaised, ranges = []) {
  counts.calls += 1n;
  if (counts.first === null || call < counts.first) counts.first = call;
  if (counts.last === null || call > counts.last) counts.last = call;
  if (hasRaised) counts.raised += 1n;
  for (const { leaf, min, max } of hasRaised ? [] : ranges) {
    const [low, high] = counts.ranges.get(leaf) ?? [min, max];
    counts.ranges.set(leaf, [min < low ? min : low, max > high ? max : high]);
  }
}

const own = (value) => (value instanceof Uint8Array ? value.slice() : value);
