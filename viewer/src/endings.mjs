// The end of a sealed tape: its trailer, and the locator in it (FORMAT.md, section 8).

import { openEnvelope, unpack } from "./documents.mjs";
import { invalid } from "./errors.mjs";
import {
  array, bool, bytes, count, int64, optional, pairs, record, tapeId, text, tuple, withDefault,
} from "./fields.mjs";
import { BLOCK, SUMMARY, TRAILER, parseHeader } from "./framing.mjs";
import { MAX_DOCUMENT_BYTES, MAX_GROUPS, MAX_NAME, MAX_NODES, MAX_RANK, MAX_REASONS, MAX_SIZES } from "./limits.mjs";
import { exactly } from "./windows.mjs";

const short = text();

const coverage = record({
  seen: withDefault(count, 0),
  kept: withDefault(count, 0),
  dropped: withDefault(pairs(count, MAX_REASONS), []),
  at_least: optional(bool),
});

const axis = record({
  min: int64,
  max: int64,
  sizes: withDefault(array(tuple(int64, count), MAX_SIZES), []),
  other_calls: withDefault(count, 0),
});

const nilOr = (check) => (value) => (value === null ? null : check(value));

const group = record({
  structure: bytes(),
  calls: count,
  dtypes: withDefault(array(text(MAX_NAME), MAX_NODES), []),
  leaves: withDefault(array(array(axis, MAX_RANK), MAX_NODES), []),
  scalars: withDefault(array(nilOr(axis), MAX_NODES), []),
});

function wholeGroup(value) {
  const found = group(value);
  if (found.dtypes.length !== found.leaves.length) {
    throw invalid(`${found.dtypes.length} dtypes for ${found.leaves.length} leaves`);
  }
  return found;
}

/** The fields that a trailer and a summary share. */
export const ENDING = {
  tape: tapeId,
  closed_ns: count,
  coverage,
  traffic: optional(record({
    groups: withDefault(array(wholeGroup, MAX_GROUPS), []),
    other_calls: withDefault(count, 0),
  })),
  dumps: withDefault(array(record({ time_ns: count, reason: short, calls: count }), MAX_REASONS), []),
  continues: optional(bool),
};

const trailer = record({ ...ENDING, index: withDefault(bytes(), new Uint8Array(0)) });

/**
 * The trailer from the content of its member.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function trailerOf(content) {
  const found = trailer(unpack(openEnvelope(content)));
  if (BigInt(found.index.length) !== 16n * BigInt(found.coverage.kept)) {
    throw invalid(`an index of ${found.index.length} bytes for ${found.coverage.kept} calls`);
  }
  return found;
}

/** The entries of an index: numbers of calls (bigints), and offsets of their first members. */
export function indexOf(trailer) {
  const view = new DataView(trailer.index.buffer, trailer.index.byteOffset, trailer.index.length);
  const calls = trailer.index.length / 16;
  const numbers = new BigUint64Array(calls);
  const offsets = new Float64Array(calls);
  for (let at = 0; at < calls; at++) {
    numbers[at] = view.getBigUint64(16 * at, true);
    offsets[at] = Number(view.getBigUint64(16 * at + 8, true));
  }
  return { numbers, offsets };
}

const LOCATOR_BYTES = 26;
const MAX_SEARCHED = MAX_DOCUMENT_BYTES + 2 * BLOCK;
const STEP = 1024 * 1024;

/**
 * The members of the trailer and of the summary, found from the end of a file; null if it does not
 * end like a sealed tape. `summary` is null if it has none.
 */
export async function endOf(source) {
  const length = Math.min(4 * BLOCK, source.size);
  const tail = await exactly(source, source.size - length, length);
  let zeros = 0;
  while (zeros < length && tail[length - 1 - zeros] === 0) zeros++;
  if (zeros < 2 * BLOCK) return null;
  const located = await byLocator(source, tail.subarray(0, length - zeros), zeros);
  return located ?? (await bySearch(source));
}

async function byLocator(source, content, zeros) {
  if (zeros >= 3 * BLOCK || content.length < LOCATOR_BYTES) return null;
  const locator = content.subarray(content.length - LOCATOR_BYTES);
  const magic = String.fromCharCode(...locator.subarray(18));
  if (locator[0] !== 0xc4 || locator[1] !== 24 || magic !== "calltape") return null;
  const view = new DataView(locator.buffer, locator.byteOffset, LOCATOR_BYTES);
  const places = [view.getBigUint64(2, true), view.getBigUint64(10, true)].map(Number);
  const [trailer, summary] = await Promise.all(places.map((offset) => headerAt(source, offset)));
  const isWhole =
    trailer?.name === TRAILER && summary?.name === SUMMARY &&
    trailer.end + 2 * BLOCK === source.size && summary.end === trailer.offset;
  return isWhole ? { trailer, summary } : null;
}

async function headerAt(source, offset) {
  if (!Number.isSafeInteger(offset) || offset + BLOCK > source.size) return null;
  return parseHeader(await exactly(source, offset, BLOCK), offset);
}

/** The header of the trailer, looked for backwards from the end. */
async function bySearch(source) {
  const last = source.size - 2 * BLOCK;
  const first = Math.max(0, last - MAX_SEARCHED);
  if (last % BLOCK !== 0) return null;
  for (let end = last; end > first; ) {
    const start = Math.max(Math.ceil(first / BLOCK) * BLOCK, end - STEP);
    const part = await exactly(source, start, end - start);
    for (let at = part.length - BLOCK; at >= 0; at -= BLOCK) {
      const member = part[at + 257] === 117 ? parseHeader(part.subarray(at, at + BLOCK), start + at) : null;
      if (member?.name === TRAILER && member.end === last) return { trailer: member, summary: null };
    }
    end = start;
  }
  return null;
}
