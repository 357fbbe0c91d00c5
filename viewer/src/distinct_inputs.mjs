// The distinct inputs of the calls of a tape, each with a number. Most calls have inputs that an
// earlier call had: their trees are decoded and described once.

import { crc32 } from "./checksums.mjs";
import { NOT_NUMBERED } from "./columns.mjs";
import { Float, SurrogateText } from "./documents.mjs";
import { MAX_INPUTS } from "./limits.mjs";
import { bytesKey } from "./nesting.mjs";

const MOST_BYTES = 64 * 1024 * 1024;

/** Gives equal bytes one number. */
class Interned {
  constructor() {
    this.known = new Map();
    this.count = 0;
    this.last = null;
  }

  numberOf(bytes) {
    if (this.last !== null && areEqual(this.last.bytes, bytes)) return this.last;
    const sum = crc32(bytes) * 1024 + (bytes.length % 1024);
    const same = this.known.get(sum) ?? [];
    let found = same.find((one) => areEqual(one.bytes, bytes));
    if (found === undefined) {
      found = { bytes: bytes.slice(), number: this.count++, isNew: true };
      if (same.length < 64) this.known.set(sum, [...same, found]);
    }
    this.last = found;
    return found;
  }
}

function areEqual(one, other) {
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at++) if (one[at] !== other[at]) return false;
  return true;
}

/** Equal for scalars that a tape writes with the same bytes. */
export function scalarKey(value) {
  if (typeof value === "string") return `s${value.length}:${value}`;
  if (value instanceof Float) {
    const bits = new DataView(new ArrayBuffer(8));
    bits.setFloat64(0, value.value);
    return `f${bits.getBigUint64(0)}`;
  }
  if (value instanceof SurrogateText) return `w${value.bytes.length}:${bytesKey(value.bytes)}`;
  if (value instanceof Uint8Array) return `b${value.length}:${bytesKey(value)}`;
  if (Array.isArray(value)) return `(${value.map(scalarKey).join()})`;
  return `i${value}`;
}

export class DistinctInputs {
  constructor() {
    this.structures = new Interned();
    this.leaves = new Interned();
    this.numbers = new Map();
    this.entries = []; // { tree, raised, calls, first, last } by number
    this.bytes = 0;
  }

  /** The number of the inputs of a record; NOT_NUMBERED if there are too many different ones. */
  numberOf(tree, raised, call) {
    const structure = this.structures.numberOf(tree.structure);
    const leaves = this.leaves.numberOf(tree.leaves);
    const scalars = tree.scalars.map(scalarKey).join();
    const key = `${structure.number},${leaves.number},${raised ? 1 : 0},${scalars}`;
    let number = this.numbers.get(key);
    if (number === undefined) {
      this.bytes += key.length;
      for (const part of [structure, leaves]) {
        this.bytes += part.isNew ? part.bytes.length : 0;
        part.isNew = false;
      }
      if (this.entries.length >= MAX_INPUTS || this.bytes > MOST_BYTES) return NOT_NUMBERED;
      number = this.entries.length;
      this.numbers.set(key, number);
      this.entries.push({
        tree: { ...tree, structure: structure.bytes, leaves: leaves.bytes, scalars: tree.scalars.map(own) },
        raised, calls: 0n, first: BigInt(call), last: BigInt(call),
      });
    }
    const entry = this.entries[number];
    entry.calls += 1n;
    if (call < entry.first) entry.first = BigInt(call);
    if (call > entry.last) entry.last = BigInt(call);
    return number;
  }
}

/** A scalar that does not hold the memory of a whole window. */
const own = (value) => (value instanceof Uint8Array ? value.slice() : value);
