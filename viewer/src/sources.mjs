// Where the bytes of a tape come from: a file that somebody dropped, or the server of `calltape view`.
// Only the ranges that are asked for are read.

import { TapeError, damaged, overLimit } from "./errors.mjs";

/** A file of the browser, or a part of its memory. */
export class BlobSource {
  constructor(blob, name) {
    this.blob = blob;
    this.name = name;
    this.size = blob.size;
  }

  async read(offset, length) {
    try {
      return new Uint8Array(await this.blob.slice(offset, offset + length).arrayBuffer());
    } catch {
      throw new TapeError("io", "the browser cannot read the file; it may have changed: drop it again");
    }
  }
}

/** A tape that the server of the page has. */
export class RangeSource {
  constructor(url, name, size) {
    this.url = url;
    this.name = name;
    this.size = size;
  }

  async read(offset, length) {
    if (length === 0) return new Uint8Array(0);
    const answer = await this.ask(offset, length);
    const bytes = answer.status === 206 ? new Uint8Array(await answer.arrayBuffer()) : new Uint8Array(0);
    if (bytes.length !== length) throw new TapeError("io", `the server gave ${answer.status} for a part of the tape`);
    return bytes;
  }

  async ask(offset, length) {
    try {
      return await fetch(this.url, { headers: { Range: `bytes=${offset}-${offset + length - 1}` } });
    } catch {
      throw new TapeError("io", "`calltape view` does not answer any more; start it again");
    }
  }
}

const LEAST_LIMIT = 256 * 1024 * 1024;
const MOST_LIMIT = 2 * 1024 * 1024 * 1024;
const TIMES = 64;
const PART = 16 * 1024 * 1024;

/**
 * The source of a file. A compressed tape is one by its name and its first bytes: it is decompressed,
 * up to a limit.
 *
 * @throws {TapeError} damaged; limit; usage for a compression that browsers do not have
 */
export async function sourceOf(file, onProgress) {
  const head = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  if (file.name.endsWith(".tape.zst") && head.join() === "40,181,47,253") {
    throw new TapeError("usage", "browsers cannot read Zstandard: use `calltape view`, or `zstd -d` first");
  }
  if (!file.name.endsWith(".tape.gz") || head[0] !== 0x1f || head[1] !== 0x8b) {
    return new BlobSource(file, file.name);
  }
  return new BlobSource(await unpacked(file, onProgress), file.name);
}

async function unpacked(file, onProgress) {
  const limit = Math.min(MOST_LIMIT, Math.max(LEAST_LIMIT, TIMES * file.size));
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = []; // blobs, which a browser may keep on its disk
  let pieces = [];
  let waiting = 0;
  let done = 0;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      done += next.value.length;
      waiting += next.value.length;
      if (done > limit) throw overLimit(`it becomes larger than ${limit} bytes when it is decompressed`);
      pieces.push(next.value);
      if (waiting >= PART) {
        parts.push(new Blob(pieces));
        pieces = [];
        waiting = 0;
        await onProgress?.(done);
      }
    }
  } catch (error) {
    await reader.cancel().catch(() => undefined);
    throw error instanceof TapeError ? error : damaged("it cannot be decompressed, or ends too early");
  }
  return new Blob([...parts, ...pieces]);
}
