// Sections: bytes with a checksum, which may be compressed (FORMAT.md, section 3).

import { crc32 } from "./checksums.mjs";
import { isInt } from "./documents.mjs";
import { damaged, overLimit, unsupported } from "./errors.mjs";
import { inflated } from "./inflation.mjs";

const STORED = 0;
const ZLIB = 1;

/**
 * A section from its array [codec, size, crc32, data], whose checksum holds.
 *
 * @param value a decoded array.
 * @param {string} what its name for errors.
 * @throws {TapeError} damaged
 */
export function sectionOf(value, what) {
  const [codec, size, checksum, data] = Array.isArray(value) ? value : [];
  if (!isInt(codec) || !isInt(size) || !isInt(checksum) || !(data instanceof Uint8Array) || codec < 0 || size < 0) {
    throw damaged(`${what} is not a section [codec, size, crc32, data]`);
  }
  if (crc32(data) !== checksum) throw damaged(`the checksum of ${what} does not match its bytes`);
  return { codec, size, data };
}

/**
 * The bytes of a section.
 *
 * @param {number} most how many they may be.
 * @throws {TapeError} damaged, limit or unsupported
 */
export async function contentOf({ codec, size, data }, most, what) {
  if (codec !== STORED && codec !== ZLIB) throw unsupported(`${what}: compressed with codec ${codec}`);
  if (size > most) throw overLimit(`${what}: ${size} bytes (at most ${most})`);
  if (codec === ZLIB) return inflated(data, size, most, what);
  if (data.length !== size) throw damaged(`${what}: not ${size} bytes`);
  return data;
}
