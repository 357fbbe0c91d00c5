// Groups: members with the records of many small calls (FORMAT.md, section 5).

import { crc32 } from "./checksums.mjs";
import { envelopeParts, isInt } from "./documents.mjs";
import { damaged, overLimit } from "./errors.mjs";
import { inflate } from "./inflation.mjs";
import { MAX_GATHERED_BYTES, MAX_GROUP_BYTES, MAX_GROUP_TIMES } from "./limits.mjs";

const LENGTH_BYTES = 4;

/** Throws if a group is larger than a reader takes. */
export function checkGroupSize(member) {
  if (member.size > MAX_GROUP_BYTES) {
    throw overLimit(`a group of records has ${member.size} bytes (at most ${MAX_GROUP_BYTES})`);
  }
}

/**
 * Goes over the entries of a group. For each it calls `take(payload, at)` with the payload of the
 * record and the offset of its entry; what is wrong with an entry, or what `take` throws, goes to
 * `onBad(error, at, end)` with the place of the entry. The next entry is read all the same.
 *
 * @param {Uint8Array} content of the member.
 * @throws {TapeError} damaged if bytes after the last entry are not zero.
 */
export function eachEntry(content, take, onBad) {
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  const entries = new Map(); // the parts of the envelopes of the entries so far, by offset
  let room = MAX_GROUP_TIMES * content.length;
  let at = 0;
  while (at + LENGTH_BYTES <= content.length) {
    const size = view.getUint32(at, true);
    if (size === 0) break;
    const end = at + LENGTH_BYTES + size;
    try {
      if (end > content.length) throw damaged("an entry of a group is longer than the group");
      const entry = entryOf(content.subarray(at + LENGTH_BYTES, end));
      entries.set(at, entry);
      room -= entry.size;
      if (room < 0) throw overLimit("the records of a group are too large together");
      take(payloadOf(entry, at, entries), at);
    } catch (error) {
      if (error.kind === undefined) throw error;
      onBad(error, at, end);
    }
    at = end;
  }
  if (content.subarray(at).some((byte) => byte !== 0)) {
    throw damaged(`${content.length - at} bytes of a group of records are no entries`);
  }
}

function entryOf(bytes) {
  const [checksum, packed, distance, size] = envelopeParts(bytes);
  if (size === undefined) return { checksum, packed, distance: null, size: packed.length };
  if (!isInt(distance) || !isInt(size) || distance < 1 || size < 1) {
    throw damaged("an entry refers to no other entry");
  }
  if (size > MAX_GATHERED_BYTES) {
    throw overLimit(`an entry has ${size} bytes (at most ${MAX_GATHERED_BYTES})`);
  }
  return { checksum, packed, distance, size };
}

function payloadOf(entry, at, entries) {
  const payload = entry.distance === null ? entry.packed : inflated(entry, at, entries);
  if (crc32(payload) !== entry.checksum) {
    throw damaged("the checksum of the record does not match its bytes");
  }
  return payload;
}

function inflated(entry, at, entries) {
  const other = typeof entry.distance === "number" ? entries.get(at - entry.distance) : undefined;
  if (other === undefined || other.distance !== null || other.size > MAX_GATHERED_BYTES) {
    throw damaged("an entry refers to one that it cannot refer to");
  }
  return inflate(entry.packed, entry.size, other.packed);
}
