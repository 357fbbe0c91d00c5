// Reading a file front to back in pieces, or here and there: few reads, and little memory.
//
// A source is an object with `size` (bytes) and `read(offset, length)`, a promise of a Uint8Array
// with exactly the bytes that are there.

import { TapeError } from "./errors.mjs";

const SMALLEST = 32 * 1024;
const LARGEST = 4 * 1024 * 1024;

/** Part of a source in memory. It grows while a walk goes on right after it, and begins small again
 * after a jump. */
export class Window {
  constructor(source) {
    this.source = source;
    this.size = source.size;
    this.start = 0;
    this.bytes = new Uint8Array(0);
    this.next = SMALLEST;
  }

  /** Bytes that are in memory; null if some of them are not. Fewer at the end of the file. */
  peek(offset, length) {
    const from = offset - this.start;
    const to = Math.min(offset + length, this.size) - this.start;
    return from >= 0 && to <= this.bytes.length ? this.bytes.subarray(from, Math.max(from, to)) : null;
  }

  /** Bytes of the file, read if they are not in memory. */
  async at(offset, length) {
    const known = this.peek(offset, length);
    if (known !== null) return known;
    const wanted = Math.min(length, Math.max(0, this.size - offset));
    if (wanted > LARGEST) return exactly(this.source, offset, wanted);
    const end = this.start + this.bytes.length;
    const isNear = offset <= end && offset >= this.start;
    this.next = isNear ? Math.min(2 * this.next, LARGEST) : SMALLEST;
    this.bytes = await exactly(this.source, offset, Math.min(Math.max(wanted, this.next), this.size - offset));
    this.start = offset;
    return this.peek(offset, length);
  }
}

/** Bytes of a source that are there: not fewer than were asked for. */
export async function exactly(source, offset, length) {
  const found = await source.read(offset, length);
  if (found.length !== length) throw new TapeError("io", "the file changed while it was read");
  return found;
}
