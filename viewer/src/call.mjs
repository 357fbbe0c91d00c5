// One call: its trees, and the values of its tensors.

import { crc32 } from "./checksums.mjs";
import { elementBytes, isQuantized, storedAs } from "./dtypes.mjs";
import { damaged, invalid } from "./errors.mjs";
import { partsOf, partsOfInputs } from "./records.mjs";
import { LENGTH_BYTES, entriesOf, headerSize } from "./safetensors.mjs";
import { exactly } from "./windows.mjs";

const PIECE = 4 * 1024 * 1024;

export class Call {
  constructor(source, record, blob) {
    this.source = source;
    this.record = record;
    this.blob = blob;
    this.isWhole = record.blob === undefined; // whether the checksum of the blob was compared
    this.tensors = null; // the entries of the blob, and where its data begins
    this.inputs = { tree: record.inputs, ...partsOfInputs(record.inputs) };
    this.outputs = record.outputs === undefined ? null : { tree: record.outputs, ...partsOf(record.outputs) };
  }

  /**
   * Compares the blob with its checksum, the first time.
   *
   * @param onProgress called with bytes that were read; a promise that it returns is waited for.
   * @throws {TapeError} damaged
   */
  async check(onProgress = () => undefined) {
    if (this.isWhole) return;
    const { size } = this.record.blob;
    let sum = 0;
    for (let at = 0; at < size; at += PIECE) {
      const length = Math.min(PIECE, size - at);
      sum = crc32(await exactly(this.source, this.blob.start + at, length), sum);
      const waiting = onProgress(at + length);
      if (waiting !== undefined) await waiting;
    }
    if (sum !== this.record.blob.crc32) {
      const reason = `call ${this.record.call}: the checksum of its tensors does not match their bytes`;
      throw damaged(reason).at({ member: this.blob.name, offset: this.blob.offset });
    }
    this.isWhole = true;
  }

  /** The entries of the blob, after its checksum was compared. */
  async entries(onProgress) {
    if (this.tensors !== null) return this.tensors;
    if (this.blob === null || this.record.blob === undefined) {
      throw damaged(`call ${this.record.call} has no blob for its tensors`);
    }
    await this.check(onProgress);
    const { start, size } = this.blob;
    const prefix = await exactly(this.source, start, Math.min(LENGTH_BYTES, size));
    const length = headerSize(prefix, size);
    const entries = entriesOf(await exactly(this.source, start, length), size);
    this.tensors = { entries, start: start + length };
    return this.tensors;
  }

  /**
   * Where the bytes of a leaf are in the file, after all that is said of them was compared.
   *
   * @throws {TapeError} damaged, invalid or limit
   */
  async placeOf(leaf, onProgress) {
    const { entries, start } = await this.entries(onProgress);
    const entry = entries.get(leaf.key);
    const stored = storedAs(leaf);
    if (entry === undefined || stored === null || stored.dtype !== entry.dtype || stored.shape !== entry.shape) {
      const found = entry === undefined ? "no entry" : `${entry.dtype}[${entry.shape}]`;
      throw invalid(`${leaf.key}: the record says ${leaf.dtype}[${leaf.shape}], the blob has ${found}`);
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
    return exactly(this.source, start + first, length);
  }
}
