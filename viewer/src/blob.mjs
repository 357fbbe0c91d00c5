// The tensors of a call, as they stand in its blob.

import { crc32 } from "./checksums.mjs";
import { TapeError, damaged, unsupported } from "./errors.mjs";
import { inflatedFrom } from "./inflation.mjs";
import { MAX_INFLATED_BLOB } from "./limits.mjs";
import { LENGTH_BYTES, entriesOf, headerSize } from "./safetensors.mjs";
import { exactly } from "./windows.mjs";

const PIECE = 4 * 1024 * 1024;
const STEP = 1024 * 1024; // bytes from one checksum of `steps` to the next
const CRC32 = 0;
const STORED = 0;
const ZLIB = 1;

/**
 * Throws if what a record says of its blob needs a later version.
 *
 * @throws {TapeError} unsupported
 */
export function expectKnownBlob({ algorithm, codec }) {
  if (algorithm !== CRC32) throw unsupported(`the checksums of a blob are of the algorithm ${algorithm}`);
  if (codec !== STORED && codec !== ZLIB) throw unsupported(`a blob is compressed with codec ${codec}`);
}

/** How many bytes the tensors of a call have in its blob, whatever compressed it. */
export const blobBytes = ({ blob }) => Number(blob?.length ?? blob?.size ?? 0);

export class Blob {
  /**
   * @param source the file.
   * @param {Member} member which was compared with the record.
   * @param {number|bigint} call the number of the call.
   * @param told what the record says of it, of which everything is known.
   * @param {Remembered} contents what other blobs were inflated to, by the offset of their member.
   */
  constructor(source, member, call, told, contents) {
    Object.assign(this, { source, member, call, contents });
    this.checksum = told.checksum;
    this.isInflated = told.codec === ZLIB;
    this.length = this.isInflated ? Number(told.length) : member.size; // of the safetensors file
    const steps = told.steps?.slice();
    this.steps = steps === undefined ? null : new DataView(steps.buffer);
    this.known = new Set(); // numbers of the MiB whose checksums were compared
    this.isWhole = false; // whether all were
    this.tensors = null;
  }

  /** The checksum of the first so many MiB, or of the whole content if it has no more; null if nobody says it. */
  sumAfter(count) {
    if (count * STEP >= this.member.size) return this.checksum;
    return this.steps?.getUint32(4 * (count - 1), true) ?? null;
  }

  compare(sum, told) {
    if (told !== null && sum !== told) {
      throw damaged(`call ${this.call}: the checksum of its tensors does not match their bytes`).at(this.place);
    }
  }

  /**
   * Compares the content with all its checksums, the first time.
   *
   * @param onProgress called with bytes that were read, and all bytes; a promise that it returns is waited for.
   * @throws {TapeError} damaged
   */
  async check(onProgress = () => undefined) {
    if (this.isWhole) return;
    const { start, size } = this.member;
    let sum = 0;
    for (let at = 0; at < size; at += PIECE) {
      const piece = await exactly(this.source, start + at, Math.min(PIECE, size - at));
      for (let from = 0; from < piece.length; from += STEP) {
        sum = crc32(piece.subarray(from, from + STEP), sum);
        this.compare(sum, this.sumAfter((at + from) / STEP + 1));
      }
      const waiting = onProgress(at + piece.length, size);
      if (waiting !== undefined) await waiting;
    }
    this.compare(sum, this.checksum);
    this.isWhole = true;
  }

  /** Compares those MiB of the content with their checksums that some bytes lie in. */
  async checkSteps(from, to) {
    const { start, size } = this.member;
    for (let number = Math.floor(from / STEP); number * STEP < to; number++) {
      if (this.known.has(number)) continue;
      const begin = number * STEP;
      const bytes = await exactly(this.source, start + begin, Math.min(STEP, size - begin));
      this.compare(crc32(bytes, number === 0 ? 0 : this.sumAfter(number)), this.sumAfter(number + 1));
      this.known.add(number);
    }
  }

  /**
   * Bytes of the safetensors file, after the checksums were compared that they need.
   *
   * @throws {TapeError} damaged or limit
   */
  async bytes(at, length, onProgress = undefined) {
    if (this.isInflated) return (await this.inflated(onProgress)).subarray(at, at + length);
    if (this.steps === null) await this.check(onProgress);
    else if (!this.isWhole) await this.checkSteps(at, at + length);
    return exactly(this.source, this.member.start + at, length);
  }

  inflated(onProgress) {
    return this.contents.get(this.member.offset, async () => {
      await this.check(onProgress);
      const { start, size } = this.member;
      const read = (from, most) => exactly(this.source, start + from, Math.min(most, size - from));
      return inflatedFrom(read, size, this.length, MAX_INFLATED_BLOB, "a blob");
    });
  }

  /** The entries, and where their data begin in the safetensors file. */
  async entries(onProgress) {
    try {
      this.tensors ??= await this.readEntries(onProgress);
    } catch (error) {
      throw error instanceof TapeError ? error.at(this.place) : error;
    }
    return this.tensors;
  }

  async readEntries(onProgress) {
    const prefix = await this.bytes(0, Math.min(LENGTH_BYTES, this.length), onProgress);
    const length = headerSize(prefix, this.length);
    const entries = entriesOf(await this.bytes(0, length), this.length);
    return { entries, start: length };
  }

  /** Where it is, for errors. */
  get place() {
    return { member: this.member.name, offset: this.member.offset };
  }
}
