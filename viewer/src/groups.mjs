// Groups: the records of one append (FORMAT.md, section 5).

import { isInt, plainInt, unpack } from "./documents.mjs";
import { damaged, invalid, overLimit, unsupported } from "./errors.mjs";
import {
  MAX_GROUP_BYTES, MAX_GROUP_BYTES_OF_SEVERAL, MAX_GROUP_CALLS, MAX_GROUP_TIMES, MAX_MEMBER_BYTES, MAX_SHARED_TIMES,
  MAX_TABLE_TIMES, MAX_WIDTH,
} from "./limits.mjs";
import { areEqual } from "./nesting.mjs";
import { recordOf } from "./records.mjs";
import { contentOf, sectionOf } from "./sections.mjs";
import { signatureOfInputs } from "./signatures.mjs";

// An entry of the table, and where its fields begin in it.
const ENTRY_BYTES = 40;
const TIME = 8;
const BEGIN = 16;
const FLAGS = 20;
const SIGNATURE = 24;
const PLACE_BYTES = 8;
const RAISED = 1;
const HAS_RANGES = 2;
const HAS_BLOB = 4;
const REQUIRED_FLAGS = 0xffff0000;

/** Whether the inputs of a record have a signature. */
const hasSignature = (signature, inputs) => signatureOfInputs(inputs) === signature;

/** A group whose table was checked. Its documents are inflated when it is opened. */
export class Group {
  constructor(table, documents) {
    this.table = table;
    this.length = table.byteLength / ENTRY_BYTES;
    this.stored = documents; // a section
    this.documents = null;
    this.parts = null; // structures and leaves, or the error that they are
    this.places = null;
  }

  /** The number of a call. */
  number(at) {
    return plainInt(this.table.getBigUint64(ENTRY_BYTES * at, true));
  }

  /** When a call began. */
  time(at) {
    return plainInt(this.table.getBigUint64(ENTRY_BYTES * at + TIME, true));
  }

  begin(at) {
    return this.table.getUint32(ENTRY_BYTES * at + BEGIN, true);
  }

  flags(at) {
    return this.table.getUint32(ENTRY_BYTES * at + FLAGS, true);
  }

  /** The signature of the inputs of a call. */
  signature(at) {
    const begin = ENTRY_BYTES * at + SIGNATURE;
    return (this.table.getBigUint64(begin + 8, true) << 64n) | this.table.getBigUint64(begin, true);
  }

  /** Throws if a call has a flag that has to be understood, and is not. */
  expectKnown(at) {
    if ((this.flags(at) & REQUIRED_FLAGS) !== 0) throw unsupported("a call has a flag that this reader does not know");
  }

  /** Whether a call raised. */
  raised(at) {
    return (this.flags(at) & RAISED) !== 0;
  }

  /** The position of the call of a number; undefined if it is in another group. */
  position(number) {
    this.places ??= new Map(Array.from({ length: this.length }, (_, at) => [this.number(at), at]));
    return this.places.get(number);
  }

  /**
   * Inflates the documents, and decodes what the records share.
   *
   * @throws {TapeError} damaged, invalid or limit
   */
  async open() {
    if (this.parts !== null) return this;
    const most = Math.min(MAX_GROUP_BYTES, MAX_GROUP_TIMES * this.stored.data.length);
    this.documents = await contentOf(this.stored, most, "the records of a group");
    const parts = unpack(this.documents.subarray(0, this.begin(0)));
    if (!Array.isArray(parts) || !parts.every((part) => part instanceof Uint8Array)) {
      throw invalid("the shared parts of a group are not an array of bins");
    }
    this.parts = parts;
    return this;
  }

  /**
   * The record of a call of an open group.
   *
   * @param {(signature: bigint, inputs) => boolean} isOf whether inputs have a signature.
   * @throws {TapeError} damaged, invalid or limit
   */
  record(at, isOf = hasSignature) {
    this.expectKnown(at);
    const end = at + 1 < this.length ? this.begin(at + 1) : this.documents.length;
    const found = recordOf(unpack(this.documents.subarray(this.begin(at), end)), this.parts);
    const flags =
      (found.error === undefined ? 0 : RAISED) | (found.inputs.ranges.length === 0 ? 0 : HAS_RANGES) |
      (found.blob === undefined ? 0 : HAS_BLOB);
    if (flags !== (this.flags(at) & (RAISED | HAS_RANGES | HAS_BLOB)) || !isOf(this.signature(at), found.inputs)) {
      throw invalid("a record is not as the table of its group says");
    }
    return { ...found, time_ns: this.time(at), call: this.number(at) };
  }
}

/**
 * The group in the content of its member. Its checksums were compared.
 *
 * @param {number} offset of its header.
 * @param {Uint8Array} id of the tape.
 * @throws {TapeError} damaged, invalid, limit or unsupported
 */
export async function groupOf(content, offset, id) {
  const found = unpack(content, MAX_MEMBER_BYTES);
  const [tape, place, width, ...sections] = Array.isArray(found) ? found : [];
  if (!(tape instanceof Uint8Array) || !(place instanceof Uint8Array) || place.length !== PLACE_BYTES || !isInt(width) || sections.length < 2) {
    throw damaged("not a group [tape, place, width, table, documents]");
  }
  const [table, documents] = [sectionOf(sections[0], "the table of a group"), sectionOf(sections[1], "the records of a group")];
  if (!areEqual(tape, id)) throw damaged("a group belongs to another tape");
  const told = new DataView(place.buffer, place.byteOffset, PLACE_BYTES).getBigUint64(0, true);
  if (told !== BigInt(offset)) throw damaged(`a group of byte ${told} is here: a copy of it, or bytes within a tensor`);
  if (width < ENTRY_BYTES || width > MAX_WIDTH) throw invalid(`the entries of a table have ${width} bytes`);
  const most = Math.min(MAX_GROUP_CALLS * width, MAX_TABLE_TIMES * table.data.length);
  const entries = await contentOf(table, most, "the table of a group");
  if (entries.length === 0 || entries.length % width !== 0) {
    throw invalid(`the table of a group has ${entries.length} bytes`);
  }
  const view = knownColumns(entries, width);
  checkTable(view, documents.size, table.data.length + documents.data.length);
  return new Group(view, documents);
}

/** The entries as this reader knows them: a later version may have more columns. */
function knownColumns(entries, width) {
  if (width === ENTRY_BYTES) return new DataView(entries.buffer, entries.byteOffset, entries.length);
  const count = entries.length / width;
  const found = new Uint8Array(count * ENTRY_BYTES);
  for (let at = 0; at < count; at++) found.set(entries.subarray(at * width, at * width + ENTRY_BYTES), at * ENTRY_BYTES);
  return new DataView(found.buffer);
}

/** The records must begin one after another, within the documents; and what several share must not be large many times. */
function checkTable(table, size, stored) {
  if (table.byteLength > ENTRY_BYTES && size > MAX_GROUP_BYTES_OF_SEVERAL) {
    throw overLimit(`a group of several calls has ${size} bytes (at most ${MAX_GROUP_BYTES_OF_SEVERAL})`);
  }
  let before = -1;
  for (let at = 0; at < table.byteLength; at += ENTRY_BYTES) {
    const begin = table.getUint32(at + BEGIN, true);
    const isWide = table.getUint32(at + 4, true) > 0x7fffffff || table.getUint32(at + TIME + 4, true) > 0x7fffffff;
    if (begin <= before || begin >= size || isWide) {
      throw invalid("the table of a group contradicts itself");
    }
    before = begin;
  }
  const calls = table.byteLength / ENTRY_BYTES;
  if (calls > 1 && calls * table.getUint32(BEGIN, true) > MAX_SHARED_TIMES * stored) {
    throw overLimit(`${calls} calls share more than ${MAX_SHARED_TIMES} times the bytes of their group`);
  }
}
