// Groups: the records of one append (FORMAT.md, section 5).

import { crc32 } from "./checksums.mjs";
import { isInt, plainInt, unpack } from "./documents.mjs";
import { damaged, invalid, overLimit, unsupported } from "./errors.mjs";
import { hashOfInputs } from "./hashing.mjs";
import { inflated } from "./inflation.mjs";
import { MAX_GROUP_BYTES, MAX_GROUP_BYTES_OF_SEVERAL, MAX_GROUP_CALLS, MAX_GROUP_TIMES } from "./limits.mjs";
import { recordOf } from "./records.mjs";

const ENTRY_BYTES = 24;
const RAISED = 1;
const HAS_RANGES = 2;
const HAS_BLOB = 4;
const REQUIRED_FLAGS = 0xffff0000;

/** Whether the inputs of a record have a hash. */
const hasHash = (hash, inputs) => hashOfInputs(inputs) === hash;

/** A group whose table was checked. Its documents are inflated when it is opened. */
export class Group {
  constructor(tape, table, documents, size) {
    this.tape = tape;
    this.table = table;
    this.length = table.byteLength / ENTRY_BYTES;
    this.stored = documents;
    this.size = size; // of the documents, if they are deflated; else 0
    this.documents = null;
    this.parts = null; // structures and leaves, or the error that they are
    this.places = null;
  }

  /** The number of a call. */
  number(at) {
    return plainInt(this.table.getBigUint64(ENTRY_BYTES * at, true));
  }

  hash(at) {
    return this.table.getBigUint64(ENTRY_BYTES * at + 8, true);
  }

  begin(at) {
    return this.table.getUint32(ENTRY_BYTES * at + 16, true);
  }

  flags(at) {
    return this.table.getUint32(ENTRY_BYTES * at + 20, true);
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
    const { stored, size } = this;
    const most = Math.min(MAX_GROUP_BYTES, MAX_GROUP_TIMES * stored.length);
    this.documents = size === 0 ? stored : await inflated(stored, size, most, "the records of a group");
    const parts = unpack(this.documents.subarray(0, this.begin(0)));
    if (!Array.isArray(parts) || !parts.every((part) => part instanceof Uint8Array)) {
      throw invalid("the shared parts of a group are no array of bins");
    }
    this.parts = parts;
    return this;
  }

  /**
   * The record of a call of an open group.
   *
   * @param {(hash: bigint, inputs) => boolean} isOf whether inputs have a hash.
   * @throws {TapeError} damaged, invalid or limit
   */
  record(at, isOf = hasHash) {
    if ((this.flags(at) & REQUIRED_FLAGS) !== 0) throw unsupported("a call has a flag that this reader does not know");
    const end = at + 1 < this.length ? this.begin(at + 1) : this.documents.length;
    const found = recordOf(unpack(this.documents.subarray(this.begin(at), end)), this.parts);
    const flags =
      (found.error === undefined ? 0 : RAISED) | (found.inputs.ranges.length === 0 ? 0 : HAS_RANGES) |
      (found.blob === undefined ? 0 : HAS_BLOB);
    if (flags !== (this.flags(at) & (RAISED | HAS_RANGES | HAS_BLOB)) || !isOf(this.hash(at), found.inputs)) {
      throw invalid("a record is not as the table of its group says");
    }
    return { ...found, call: this.number(at) };
  }
}

/**
 * The group in the content of its member. Both checksums were compared.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function groupOf(content) {
  const found = unpack(content);
  const [tape, sumOfTable, table, sumOfDocuments, documents, size] = Array.isArray(found) ? found : [];
  if (![tape, table, documents].every((part) => part instanceof Uint8Array)) {
    throw damaged("not a group [tape, crc32, table, crc32, documents, size]");
  }
  if (crc32(table) !== sumOfTable || crc32(documents) !== sumOfDocuments || !isInt(size)) {
    throw damaged("the checksum of a group does not match its bytes");
  }
  if (table.length === 0 || table.length % ENTRY_BYTES !== 0) {
    throw invalid(`the table of a group has ${table.length} bytes`);
  }
  if (table.length > MAX_GROUP_CALLS * ENTRY_BYTES) throw overLimit(`a group has more than ${MAX_GROUP_CALLS} calls`);
  const view = new DataView(table.buffer, table.byteOffset, table.length);
  checkTable(view, size === 0 ? documents.length : size);
  return new Group(tape, view, documents, size);
}

/** The records must begin one after another, within the documents. */
function checkTable(table, size) {
  if (table.byteLength > ENTRY_BYTES && size > MAX_GROUP_BYTES_OF_SEVERAL) {
    throw overLimit(`a group of several calls has ${size} bytes (at most ${MAX_GROUP_BYTES_OF_SEVERAL})`);
  }
  let before = -1;
  for (let at = 0; at < table.byteLength; at += ENTRY_BYTES) {
    const begin = table.getUint32(at + 16, true);
    if (begin <= before || begin >= size || table.getUint32(at + 4, true) > 0x7fffffff) {
      throw invalid("the table of a group contradicts itself");
    }
    before = begin;
  }
}
