// One call: its trees, and the values of its tensors.

import { elementBytes, storedAs } from "./dtypes.mjs";
import { TapeError, invalid, overLimit, unsupported } from "./errors.mjs";
import { MAX_TAKEN, MAX_TAKEN_PARTS } from "./limits.mjs";
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
    if (!this.elsewhere.has(key)) return { parts: [{ call: this, key }], axis: undefined };
    this.chains ??= this.followed();
    const found = (await this.chains).get(key);
    if (found instanceof TapeError) throw found;
    return found;
  }

  /**
   * The same of all keys that earlier calls have, or why there is none. From call to call downwards: each is asked for
   * once, and all steps are counted.
   */
  async followed() {
    const found = new Map();
    const waiting = new Map([[this.record.call, [...this.elsewhere.keys()].map((key) => ({ own: key, key, parts: [], axis: undefined, taken: 0 }))]]);
    let steps = 0;
    while (waiting.size > 0) {
      const number = [...waiting.keys()].reduce((one, other) => (other > one ? other : one));
      const walks = waiting.get(number);
      waiting.delete(number);
      let call;
      try {
        call = number === this.record.call ? this : await this.tape.callOfNumber(number);
      } catch (error) {
        if (!(error instanceof TapeError) || error.kind === "io") throw error;
        for (const { own } of walks) found.set(own, error);
        continue;
      }
      steps += walks.filter(({ key }) => call.elsewhere.has(key)).length;
      if (steps > MAX_TAKEN_PARTS) {
        const error = overLimit(`call ${this.record.call} has more than ${MAX_TAKEN_PARTS} parts of tensors`);
        return new Map([...this.elsewhere.keys()].map((key) => [key, error]));
      }
      for (const walk of walks) {
        const step = call.elsewhere.get(walk.key);
        const wrong = step === undefined ? null : troubleOf(call, step, walk);
        if (wrong !== null) {
          found.set(walk.own, wrong);
          continue;
        }
        if (step === undefined || step.axis !== undefined) walk.parts.unshift({ call, key: walk.key });
        if (step === undefined) {
          found.set(walk.own, { parts: walk.parts, axis: walk.axis });
          continue;
        }
        Object.assign(walk, { key: step.there, axis: step.axis ?? walk.axis, taken: walk.taken + 1 });
        if (!waiting.has(step.call)) waiting.set(step.call, []);
        waiting.get(step.call).push(walk);
      }
    }
    return found;
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
    const found = [];
    for (const { call, key } of parts) {
      const blob = await this.tape.blobOf(call);
      const { entries, start } = await blob.entries(onProgress);
      if (!entries.has(key)) throw invalid(`${leaf.key}: the blob of call ${call.record.call} has no entry for it`);
      found.push({ call, blob, start, entry: entries.get(key) });
    }
    // If the dtype of one part is unknown, none is compared.
    const later = found.find(({ entry }) => stored === null || !entry.isKnown);
    if (later !== undefined) {
      throw unsupported(`${leaf.key}: of the dtype ${stored === null ? leaf.dtype : later.entry.dtype}`);
    }
    for (const { call, blob, start, entry } of found) {
      const own = sizesOf(entry.shape);
      if (stored.dtype !== entry.dtype || !areAlike(own, sizes, axis)) {
        const had = `${entry.dtype}[${entry.shape}]`;
        throw invalid(`${leaf.key}: the record says ${leaf.dtype}[${leaf.shape}], the blob of call ${call.record.call} has ${had}`);
      }
      if (axis !== undefined) length += own[axis];
      places.push({ blob, start: start + entry.begin, size: entry.end - entry.begin });
    }
    if (axis !== undefined && length !== sizes[axis]) throw invalid(`${leaf.key}: its parts have ${length} of ${sizes[axis]}`);
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

/** Why a walk cannot go on from a call by this step; null if it can. */
function troubleOf({ record }, { call, axis }, walk) {
  if (walk.taken >= MAX_TAKEN) return overLimit(`${walk.own}: taken from more than ${MAX_TAKEN} calls`);
  if (call >= record.call) return invalid(`call ${record.call} refers to call ${call}, which is not an earlier call`);
  if (axis !== undefined && walk.axis !== undefined && axis !== walk.axis) return invalid(`${walk.own}: it grew along two axes`);
  return null;
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
