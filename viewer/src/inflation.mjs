// What zlib packed (RFC 1950), inflated by the browser. It never becomes more than it says.

import { TapeError, damaged, overLimit } from "./errors.mjs";

// A browser inflates a whole piece at once, up to 1,032 times: then the size is compared.
const PIECE = 16 * 1024;

/**
 * The bytes that were deflated.
 *
 * @param {Uint8Array} packed
 * @param {number|bigint} size how many bytes they were.
 * @param {number} most how many they may be.
 * @param {string} what the name for errors.
 * @throws {TapeError} limit or damaged
 */
export function inflated(packed, size, most, what) {
  return inflatedFrom((from, length) => packed.slice(from, from + length), packed.length, size, most, what);
}

/**
 * The same of what is not all in memory.
 *
 * @param read gives the packed bytes from an offset on, at most so many; or a promise of them.
 * @param {number} packed how many there are.
 * @throws {TapeError} limit, damaged, or what `read` throws
 */
export async function inflatedFrom(read, packed, size, most, what) {
  if (size < 0 || size > most) throw overLimit(`${what}: ${size} bytes (at most ${most})`);
  const broken = damaged(`${what} cannot be inflated to ${size} bytes`);
  const reader = piecesOf(read, packed).pipeThrough(new DecompressionStream("deflate")).getReader();
  const found = new Uint8Array(size);
  let filled = 0;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      if (filled + next.value.length > size) throw broken;
      found.set(next.value, filled);
      filled += next.value.length;
    }
  } catch (error) {
    await reader.cancel().catch(() => undefined);
    throw error instanceof TapeError ? error : broken;
  }
  if (filled !== size) throw broken;
  return found;
}

function piecesOf(read, length) {
  let at = 0;
  return new ReadableStream({
    async pull(controller) {
      if (at >= length) return controller.close();
      const piece = await read(at, PIECE);
      at += piece.length;
      return controller.enqueue(piece);
    },
  });
}
