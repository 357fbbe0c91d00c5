// What zlib packed (RFC 1950), inflated by the browser. It never becomes more than it says.

import { damaged, overLimit } from "./errors.mjs";

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
export async function inflated(packed, size, most, what) {
  if (size < 0 || size > most) throw overLimit(`${what}: ${size} bytes (at most ${most})`);
  const broken = damaged(`${what} cannot be inflated to ${size} bytes`);
  const reader = piecesOf(packed).pipeThrough(new DecompressionStream("deflate")).getReader();
  const found = new Uint8Array(size);
  let filled = 0;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      if (filled + next.value.length > size) throw broken;
      found.set(next.value, filled);
      filled += next.value.length;
    }
  } catch {
    await reader.cancel().catch(() => undefined);
    throw broken;
  }
  if (filled !== size) throw broken;
  return found;
}

function piecesOf(bytes) {
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.slice(at, (at += PIECE)));
      else controller.close();
    },
  });
}
