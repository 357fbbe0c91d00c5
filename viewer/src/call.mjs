// One call: its trees, and the values of its tensors.

import { elementBytes, isQuantized, storedAs } from "./dtypes.mjs";
import { invalid, overLimit, unsupported } from "./errors.mjs";
import { MAX_TAKEN } from "./limits.mjs";
import { partsOf, partsOfInputs } from "./records.mjs";

export class Call {
  /** @param {number} group the offset of the group of its record. */
  constructor(tape, record, group) {
    this.tape = tape;
    this.record = record;
    this.group = group;
    this.inputs = { tree: record.inputs, ...partsOfInputs(record.inputs) };
    this.outputs = record.outputs === undefined ? null : { tree: record.outputs, ...partsOf(record.outputs) };
    // By key: the call that has its bytes or the first of them, the key there, and the axis.
    this.elsewhere = new Map(record.at.map(([key, call, there, axis]) => [key, { call, there, axis }]));
  }

  /** Compares its own blob with its checksums, the first time. */
  async check(onProgress) {
    if (this.record.blob !== undefined) await (await this.tape.blobOf(this)).check(onProgress);
  }

  /** The calls whose blobs have parts of a key, with the key there, the oldest first; and the axis along which they follow. */
  async holdersOf(key) {
    const parts = [];
    let [call, axis] = [this, undefined];
    for (let taken = 0; taken <= MAX_TAKEN; taken++) {
      const found = call.elsewhere.get(key);
      if (found === undefined) return { parts: [{ call, key }, ...parts], axis };
      if (found.call >= call.record.call) {
        throw invalid(`call ${call.record.call} refers to call ${found.call}, which is not an earlier call`);
      }
      if (found.axis !== undefined) {
        if (parts.length > 0 && axis !== found.axis) throw invalid(`${key}: it grew along two axes`);
        parts.unshift({ call, key });
        axis = found.axis;
      }
      [call, key] = [await this.tape.callOfNumber(found.call), found.there];
    }
    throw overLimit(`${key}: taken from more than ${MAX_TAKEN} calls`);
  }

  /**
   * Where the bytes of a leaf are in which blobs, after all that is said of them was compared: parts, one after
   * another along an axis; and how many rows there are before it.
   *
   * @throws {TapeError} unsupported, damaged, invalid or limit
   */
  async placeOf(leaf, onProgress) {
    const stored = storedAs(leaf);
    const { parts, axis } = await this.holdersOf(leaf.key);
    const sizes = stored === null ? [] : sizesOf(stored.shape);
    const places = [];
    let length = 0n;
    for (const { call, key } of parts) {
      const blob = await this.tape.blobOf(call);
      const { entries, start } = await blob.entries(onProgress);
      const entry = entries.get(key);
      if (entry !== undefined && (stored === null || !entry.isKnown)) {
        throw unsupported(`${leaf.key}: of the dtype ${stored === null ? leaf.dtype : entry.dtype}`);
      }
      const own = entry === undefined ? [] : sizesOf(entry.shape);
      if (entry === undefined || stored === null || stored.dtype !== entry.dtype || !areAlike(own, sizes, axis)) {
        const found = entry === undefined ? "no entry" : `${entry.dtype}[${entry.shape}]`;
        throw invalid(`${leaf.key}: the record says ${leaf.dtype}[${leaf.shape}], the blob of call ${call.record.call} has ${found}`);
      }
      if (axis !== undefined) length += own[axis];
      places.push({ blob, start: start + entry.begin, size: entry.end - entry.begin });
    }
    if (axis !== undefined && length !== sizes[axis]) throw invalid(`${leaf.key}: its parts have ${length} of ${sizes[axis]}`);
    if (isQuantized(leaf.dtype) && leaf.quantizer === undefined) {
      throw invalid(`${leaf.key}: a quantized tensor without a quantizer`);
    }
    const rows = Number(sizes.slice(0, axis ?? 0).reduce((product, size) => product * size, 1n));
    const size = places.reduce((sum, place) => sum + place.size, 0);
    return { parts: places, rows, size, width: elementBytes(leaf.dtype) };
  }

  /** Bytes of elements `from` to `to` of a leaf, as they follow in memory. */
  async bytesOf(leaf, from = 0, to = Infinity, onProgress = undefined) {
    const { parts, rows, size, width } = await this.placeOf(leaf, onProgress);
    const [first, end] = [from, Math.max(from, to)].map((at) => Math.min(at * width, size));
    if (first === end) return new Uint8Array(0);
    const row = size / rows; // bytes of a row of all parts
    const [low, high] = [Math.floor(first / row), Math.ceil(end / row)];
    const made = new Uint8Array(end - first);
    let begin = 0;
    for (const part of parts) {
      const own = part.size / rows;
      // Of one row only what is asked for is read, of more rows each as a whole.
      const isOne = high - low === 1;
      const skipped = isOne ? Math.min(Math.max(first - low * row - begin, 0), own) : 0;
      const read = isOne ? Math.min(Math.max(end - low * row - begin, 0), own) - skipped : (high - low) * own;
      const bytes = await part.blob.bytes(part.start + low * own + skipped, read, onProgress);
      for (let at = low; at < high; at++) {
        const piece = isOne ? bytes : bytes.subarray((at - low) * own, (at - low + 1) * own);
        const to = at * row + begin + skipped - first;
        const [cut, kept] = [Math.max(-to, 0), Math.min(piece.length, made.length - to)];
        if (kept > cut) made.set(piece.subarray(cut, kept), to + cut);
      }
      begin += own;
    }
    return made;
  }
}

/** The sizes of a shape, which is text. */
function sizesOf(shape) {
  return shape === "" ? [] : shape.split(",").map(BigInt);
}

/** Whether two shapes are equal, apart from an axis if there is one. */
function areAlike(one, other, axis) {
  if (one.length !== other.length || (axis !== undefined && axis >= one.length)) return false;
  return one.every((size, at) => at === axis || size === other[at]);
}
