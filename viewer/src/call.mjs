// One call: its trees, and the values of its tensors.

import { elementBytes, isQuantized, storedAs } from "./dtypes.mjs";
import { damaged, invalid } from "./errors.mjs";
import { partsOf, partsOfInputs } from "./records.mjs";
import { exactly } from "./windows.mjs";

export class Call {
  /** @param {number} group the offset of the group of its record. */
  constructor(tape, record, group) {
    this.tape = tape;
    this.record = record;
    this.group = group;
    this.inputs = { tree: record.inputs, ...partsOfInputs(record.inputs) };
    this.outputs = record.outputs === undefined ? null : { tree: record.outputs, ...partsOf(record.outputs) };
    // The call and the key there of bytes that an earlier call has, by key. The first one counts.
    this.elsewhere = new Map([...record.at].reverse().map(([key, call, there]) => [key, { call, there }]));
  }

  /** Compares its own blob with its checksum, the first time. */
  async check(onProgress) {
    if (this.record.blob !== undefined) await (await this.tape.blobOf(this)).check(onProgress);
  }

  /** The blob that has the bytes of a key, and the key there. */
  async holderOf(key) {
    const found = this.elsewhere.get(key);
    if (found === undefined) return { blob: await this.tape.blobOf(this), there: key };
    if (found.call >= this.record.call) {
      throw invalid(`call ${this.record.call} refers to call ${found.call}, which is no earlier one`);
    }
    return { blob: await this.tape.blobOfNumber(found.call), there: found.there };
  }

  /**
   * Where the bytes of a leaf are in the file, after all that is said of them was compared.
   *
   * @throws {TapeError} damaged, invalid or limit
   */
  async placeOf(leaf, onProgress) {
    const { blob, there } = await this.holderOf(leaf.key);
    const { entries, start } = await blob.entries(onProgress);
    const entry = entries.get(there);
    const stored = storedAs(leaf);
    if (entry === undefined || stored === null || stored.dtype !== entry.dtype || stored.shape !== entry.shape) {
      const found = entry === undefined ? "no entry" : `${entry.dtype}[${entry.shape}]`;
      throw invalid(`${leaf.key}: the record says ${leaf.dtype}[${leaf.shape}], the blob of call ${blob.call} has ${found}`);
    }
    if (isQuantized(leaf.dtype) && leaf.quantizer === undefined) {
      throw invalid(`${leaf.key}: a quantized tensor without a quantizer`);
    }
    return { start: start + entry.begin, size: entry.end - entry.begin, width: elementBytes(leaf.dtype) };
  }

  /** Bytes of elements `from` to `to` of a leaf, as they stand in the blob. */
  async bytesOf(leaf, from = 0, to = Infinity, onProgress = undefined) {
    const { start, size, width } = await this.placeOf(leaf, onProgress);
    const first = Math.min(from * width, size);
    const length = Math.max(0, Math.min(to * width, size) - first);
    return exactly(this.tape.source, start + first, length);
  }
}
