// The end of a sealed tape: what became of all calls, and where their groups are; and what was counted before there
// is one (FORMAT.md, section 8).

import { envelopeOf, openEnvelope, plainInt, unpack } from "./documents.mjs";
import { TapeError, damaged, invalid } from "./errors.mjs";
import {
  array, bool, bytes, count, expectKnown, features, int, optional, pairs, record, runs, tapeId, text, tuple, withDefault,
} from "./fields.mjs";
import { BLOCK, END, Member, parseHeader } from "./framing.mjs";
import { MAX_COUNT, MAX_INDEX_BYTES, MAX_MEMBER_BYTES, MAX_REASONS, MAX_WIDTH } from "./limits.mjs";
import { areEqual } from "./nesting.mjs";
import { contentOf, sectionOf } from "./sections.mjs";
import { exactly } from "./windows.mjs";

const ENTRY_BYTES = 48;

const section = (value) => {
  if (!Array.isArray(value)) throw invalid("a section that is no array");
  return value;
};

const coverageFields = {
  seen: withDefault(count, 0),
  kept: withDefault(count, 0),
  dropped: withDefault(pairs(count, MAX_REASONS), []),
  at_least: optional(bool),
  counted_ns: optional(count),
};
const coverage = record(coverageFields);

const fileNumbers = runs(MAX_REASONS);

const counts = record({
  tape: tapeId,
  number: count,
  next_call: count,
  coverage: record({ ...coverageFields, counted_ns: count }),
  deleted: optional(fileNumbers),
});

/** How many calls a coverage accounts for. */
export const accounted = ({ kept, dropped }) => dropped.reduce((sum, [, calls]) => sum + BigInt(calls), BigInt(kept));

/** What the recorder had counted, of a tape without an end; null if it cannot be read: it was being written. */
export function countsFrom(content) {
  try {
    const found = counts(unpack(openEnvelope(content)));
    return BigInt(found.coverage.seen) === accounted(found.coverage) ? found : null;
  } catch (error) {
    if (error instanceof TapeError) return null;
    throw error;
  }
}

const end = record({
  tape: tapeId,
  requires: features,
  manifest: bytes(),
  closed_ns: count,
  coverage,
  dumps: withDefault(array(record({ time_ns: count, reason: text(), calls: count }), MAX_REASONS), []),
  continues: optional(bool),
  next_call: optional(count),
  deleted: optional(fileNumbers),
  elsewhere: optional(bool),
  first_call: optional(count),
  last_call: optional(count),
  first_ns: optional(count),
  last_ns: optional(count),
  raised: withDefault(count, 0),
  tensor_bytes: withDefault(count, 0),
  index_width: withDefault(int(ENTRY_BYTES, MAX_WIDTH), ENTRY_BYTES),
  index: section,
  inputs: optional(section),
});

/**
 * An end from the content of its member.
 *
 * @throws {TapeError} unsupported, damaged, invalid or limit
 */
export function endFrom(content) {
  const { payload, last } = envelopeOf(content);
  if (!(last instanceof Uint8Array) || last.length !== LOCATOR_BYTES) throw damaged("an end without a locator");
  const document = unpack(payload);
  expectKnown(document, "the end of the tape");
  const found = end(document);
  const { kept } = found.coverage;
  if (found.raised > kept) throw invalid(`${found.raised} of ${kept} calls raised`);
  const hasCalls = kept > 0 && !found.elsewhere;
  if ((found.first_call !== undefined) !== hasCalls || (found.last_call !== undefined) !== hasCalls) {
    throw invalid("the first and the last call are not those of a tape with calls");
  }
  const isTimed = (found.first_ns !== undefined) === hasCalls && (found.last_ns !== undefined) === hasCalls;
  if (!found.elsewhere && !isTimed) { // a survey may not know them
    throw invalid("the first and the last time are not those of a tape with calls");
  }
  return found;
}

/**
 * The groups of a tape by its index: by the offset of the header how many `calls` there are, and the lowest
 * (`low`) and the highest (`high`) of their numbers.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export async function indexOf({ index, index_width: width, coverage, elsewhere }) {
  const data = await contentOf(sectionOf(index, "the index"), MAX_INDEX_BYTES, "the index");
  if (data.length % width !== 0) throw invalid(`an index of ${data.length} bytes`);
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  const word = (at) => plainInt(view.getBigUint64(at, true));
  const found = new Map();
  let before = -1;
  let sum = 0n;
  for (let at = 0; at < data.length; at += width) {
    const [offset, calls, low, high, first, last] = [0, 8, 16, 24, 32, 40].map((place) => word(at + place));
    const isSound = offset > before && offset <= MAX_COUNT && calls > 0 && low <= high && high <= MAX_COUNT && first <= last && last <= MAX_COUNT;
    if (!isSound) throw invalid("the index has a group that cannot be");
    found.set(offset, { calls, low, high, first, last });
    before = offset;
    sum += BigInt(calls);
  }
  const kept = elsewhere ? 0n : BigInt(coverage.kept);
  if (sum !== kept) throw invalid(`the index does not have the ${kept} calls that were kept`);
  return found;
}

const MAGIC = "calltape";
const LOCATOR_BYTES = 24;
const TAIL_BYTES = 64 * 1024;

/**
 * The end of a sealed tape, by the locator at the end of the file; null if the tape is not sealed, or if its end
 * cannot be read. Its index and its table are not inflated yet; `offset` is that of its header.
 *
 * @param {Uint8Array|null} tape the id in the manifest; null for an end of any tape.
 * @param {number} first where the member after the manifest begins: an end before it is none.
 */
export async function endOf(source, tape, first) {
  const member = await memberOfEnd(source, first);
  if (member === null) return null;
  try {
    const found = endFrom(member.content);
    return tape === null || areEqual(found.tape, tape) ? { ...found, offset: member.offset } : null;
  } catch (error) {
    if (error instanceof TapeError) return null; // a scan says that it is damaged
    throw error;
  }
}

async function memberOfEnd(source, first) {
  const start = Math.max(0, source.size - TAIL_BYTES);
  const tail = await exactly(source, start, source.size - start);
  let length = tail.length;
  while (length > 0 && tail[length - 1] === 0) length--;
  if (length < LOCATOR_BYTES || String.fromCharCode(...tail.subarray(length - MAGIC.length, length)) !== MAGIC) {
    return null;
  }
  const view = new DataView(tail.buffer, tail.byteOffset + length - LOCATOR_BYTES, LOCATOR_BYTES);
  const [offset, size] = [0, 8].map((at) => Number(view.getBigUint64(at, true)));
  const told = new Member(END, offset, size);
  const isHere = told.start + size === start + length && told.end + 2 * BLOCK === source.size;
  if (!isHere || offset < first || offset % BLOCK !== 0 || size > MAX_MEMBER_BYTES) return null;
  const bytes = offset < start ? await exactly(source, offset, BLOCK + size) : tail.subarray(offset - start);
  const found = parseHeader(bytes.subarray(0, BLOCK), offset);
  if (found?.name !== END || found.size !== size) return null;
  return { content: bytes.subarray(BLOCK, BLOCK + size), offset };
}
