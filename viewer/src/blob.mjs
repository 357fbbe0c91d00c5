// The tensors of a call, as they stand in its blob.

import { crc32 } from "./checksums.mjs";
import { TapeError, damaged } from "./errors.mjs";
import { LENGTH_BYTES, entriesOf, headerSize } from "./safetensors.mjs";
import { exactly } from "./windows.mjs";

const PIECE = 4 * 1024 * 1024;

export class Blob {
  /**
   * @param source the file.
   * @param {Member} member which was compared with the record.
   * @param {number|bigint} call the number of the call.
   * @param {number} checksum of the content.
   */
  constructor(source, member, call, checksum) {
    Object.assign(this, { source, member, call, checksum });
    this.isWhole = false; // whether the checksum was compared
    this.tensors = null;
  }

  /**
   * Compares the content with its checksum, the first time.
   *
   * @param onProgress called with bytes that were read, and all bytes; a promise that it returns is waited for.
   * @throws {TapeError} damaged
   */
  async check(onProgress = () => undefined) {
    if (this.isWhole) return;
    const { start, size } = this.member;
    let sum = 0;
    for (let at = 0; at < size; at += PIECE) {
      const length = Math.min(PIECE, size - at);
      sum = crc32(await exactly(this.source, start + at, length), sum);
      const waiting = onProgress(at + length, size);
      if (waiting !== undefined) await waiting;
    }
    if (sum !== this.checksum) {
      throw damaged(`call ${this.call}: the checksum of its tensors does not match their bytes`).at(this.place);
    }
    this.isWhole = true;
  }

  /** The entries, and where their data begin, after the checksum was compared. */
  async entries(onProgress) {
    await this.check(onProgress);
    try {
      this.tensors ??= await this.readEntries();
    } catch (error) {
      throw error instanceof TapeError ? error.at(this.place) : error;
    }
    return this.tensors;
  }

  async readEntries() {
    const { start, size } = this.member;
    const prefix = await exactly(this.source, start, Math.min(LENGTH_BYTES, size));
    const length = headerSize(prefix, size);
    const entries = entriesOf(await exactly(this.source, start, length), size);
    return { entries, start: start + length };
  }

  /** Where it is, for errors. */
  get place() {
    return { member: this.member.name, offset: this.member.offset };
  }
}
