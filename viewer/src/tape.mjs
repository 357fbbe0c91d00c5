// A tape: what its end says of all calls, and each call when it is asked for.
//
// A sealed tape is opened from its end: the index says where each group is, the table of inputs what the
// calls were called with. Both are statements of the tape until a scan compared them with the records.

import { Blob, expectKnownBlob } from "./blob.mjs";
import { Call } from "./call.mjs";
import { Columns } from "./columns.mjs";
import { openEnvelope } from "./documents.mjs";
import { endOf, indexOf } from "./endings.mjs";
import { TapeError, damaged, invalid, overLimit } from "./errors.mjs";
import { BLOCK, END, MANIFEST, blobName, isGroup, parseHeader } from "./framing.mjs";
import { groupOf } from "./groups.mjs";
import { checkDocuments, tableOf, treeOf } from "./inputs_table.mjs";
import { MAX_GROUP_CALLS } from "./limits.mjs";
import { manifestOf } from "./manifest.mjs";
import { areEqual } from "./nesting.mjs";
import { Remembered } from "./remembered.mjs";
import { Scan, checkMemberSize } from "./scan.mjs";
import { Window, exactly } from "./windows.mjs";

const MOST_CORRUPTION = 10_000;
const MOST_GROUPS = 4; // in memory
const MOST_INFLATED = 256 * 1024 * 1024; // bytes of compressed blobs
const MOST_HOLDERS = 40; // calls that have tensors for others, and blobs: a recorder takes a tensor from 34 at most

/**
 * Opens a tape: reads its manifest and its end, and nothing else. If the first member of a sealed tape is damaged, the
 * manifest is that of its end.
 *
 * @throws {TapeError} not_a_tape, version, unsupported, damaged, invalid, limit
 */
export async function openTape(source) {
  try {
    const { payload, next } = await firstMember(source);
    const manifest = manifestOf(payload);
    const tape = new Tape(source, manifest, next, await endOf(source, manifest.tape, next));
    if (tape.end !== null && !areEqual(tape.end.manifest, payload)) {
      tape.wrongManifest = damaged("the end repeats another manifest").at({ member: END });
    }
    return tape;
  } catch (error) {
    if (!(error instanceof TapeError)) throw error;
    error.at({ member: MANIFEST, offset: 0 });
    const end = error.kind === "damaged" || error.kind === "not_a_tape" ? await endOf(source, null, 0) : null;
    if (end === null) throw error;
    const manifest = manifestOf(end.manifest);
    if (!areEqual(manifest.tape, end.tape)) throw damaged("the end repeats the manifest of another tape").at({ member: END });
    const tape = new Tape(source, manifest, 0, end);
    tape.wrongManifest = damaged(error.message).at({ member: MANIFEST, offset: 0 });
    return tape;
  }
}

/** The payload of the first member, and where the next one begins. */
async function firstMember(source) {
  const block = await exactly(source, 0, Math.min(BLOCK, source.size));
  const member = parseHeader(block, 0);
  if (member?.name === MANIFEST) checkMemberSize(member);
  const isCut = member !== null && member.start + member.size > source.size;
  if (member === null || isCut || member.name !== MANIFEST) {
    const content = await exactly(source, block.length, Math.min(32, source.size - block.length));
    const isManifest = String.fromCharCode(...content).includes("\xa6format\xa8calltape");
    if (isManifest || String.fromCharCode(...block.subarray(0, MANIFEST.length)) === MANIFEST) {
      const reason = isCut || block.length < BLOCK ? "the file ends within its manifest" : "its header is corrupted";
      throw damaged(reason).at({ member: MANIFEST, offset: 0 });
    }
    throw new TapeError("not_a_tape", "the file does not start with a tape's manifest");
  }
  return { payload: openEnvelope(await exactly(source, member.start, member.size)), next: member.end };
}

export class Tape {
  constructor(source, manifest, firstMember, end) {
    this.source = source;
    this.manifest = manifest;
    this.firstMember = firstMember;
    this.corruption = new Map(); // by text and place
    this.end = end; // null if the tape is not sealed
    this.wrongManifest = null; // what is wrong with the first member, or with the copy of it in the end
    this.table = null; // of counted inputs, by the end
    this.columns = new Columns();
    this.distinct = null; // the distinct inputs of a scan
    this.broken = new Map(); // calls whose record cannot be read, by number
    this.isScanned = false;
    this.interim = null; // what the recorder had counted, of a tape without an end
    this.unfinished = 0;
    this.window = new Window(source);
    this.groups = new Remembered(MOST_GROUPS, (offset) => this.readGroup(offset));
    this.blobs = new Remembered(MOST_HOLDERS);
    this.inflated = new Remembered(MOST_INFLATED, null, (content) => content.length);
    this.holders = new Remembered(MOST_HOLDERS, (number) => this.findHolder(number));
  }

  get isSealed() {
    return this.end !== null;
  }

  addCorruption(error) {
    const key = `${error.offset} ${error.member} ${error.message}`;
    if (this.corruption.size < MOST_CORRUPTION && !this.corruption.has(key)) this.corruption.set(key, error);
  }

  /** Reads what the end of a sealed tape says. Returns whether it told where the calls are. */
  async readEnd() {
    if (this.end === null) return false;
    try {
      await this.addCalls(await indexOf(this.end));
    } catch (error) {
      if (error instanceof TapeError && error.kind !== "io") return false; // the scan says what is wrong
      throw error;
    }
    await this.readTable();
    return true;
  }

  /** The calls by the index. The numbers in a group with gaps are in its table. */
  async addCalls(index) {
    const columns = new Columns();
    for (const [offset, { calls, low, high }] of index) {
      if (calls > MAX_GROUP_CALLS) throw overLimit(`a group has more than ${MAX_GROUP_CALLS} calls`);
      const isDense = BigInt(high) - BigInt(low) + 1n === BigInt(calls);
      const group = isDense ? null : await this.group(offset);
      if (group !== null && group.length !== calls) throw damaged("the index does not fit a group");
      for (let at = 0; at < calls; at++) {
        const number = isDense ? BigInt(low) + BigInt(at) : group.number(at);
        columns.add(number, offset, NaN, NaN, NaN, 0, false);
      }
    }
    this.columns = columns;
  }

  async readTable() {
    try {
      const table = await tableOf(this.end);
      if (table === null) return;
      checkDocuments(table);
      const rows = table.rows.filter((row) => row.calls > 0n);
      this.table = { ...table, rows: rows.map((row) => ({ ...row, tree: treeOf(row) })) };
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.addCorruption(damaged(`the table of inputs: ${error.message}`).at({ member: END }));
    }
  }

  /**
   * Reads every record, and compares what the end says with them.
   *
   * @param onProgress called with the offset that was reached; a promise that it returns is waited for.
   */
  async scan(onProgress = () => undefined) {
    const scan = new Scan(this.source, this.manifest.tape, this.end, (error) => this.addCorruption(error));
    await scan.run(this.firstMember, onProgress);
    if (this.wrongManifest !== null) this.addCorruption(this.wrongManifest);
    this.columns = scan.columns;
    this.distinct = scan.distinct;
    this.broken = scan.broken;
    this.interim = scan.interim;
    this.unfinished = scan.unfinished;
    this.isScanned = true;
    // Without calls, the table is all there is.
    if (this.end?.elsewhere && this.table === null) await this.readTable();
  }

  /**
   * The call at a position of the columns. Its record and trees are checked.
   *
   * @throws {TapeError} damaged, invalid or limit
   */
  async call(position) {
    const number = this.columns.number(position);
    const offset = this.columns.offsets[position];
    return new Call(this, await this.record(number, offset), offset);
  }

  async record(number, offset) {
    const group = await this.group(offset);
    const at = group.position(number);
    if (at === undefined) throw damaged(`call ${number} is not where the index of the tape says`).at({ offset });
    return (await group.open()).record(at);
  }

  /** The group whose header is at an offset. */
  group(offset) {
    return this.groups.get(offset);
  }

  async readGroup(offset) {
    const member = await this.memberAt(offset);
    if (member === null || !isGroup(member.name)) throw damaged("no group of records begins here").at({ offset });
    checkMemberSize(member);
    return groupOf((await this.window.at(member.start, member.size)).slice(), offset, this.manifest.tape);
  }

  async memberAt(offset) {
    if (!Number.isSafeInteger(offset) || offset % BLOCK !== 0 || offset + BLOCK > this.source.size) return null;
    const member = parseHeader(await this.window.at(offset, BLOCK), offset);
    return member === null || member.start + member.size > this.source.size ? null : member;
  }

  /**
   * The blob of a call.
   *
   * @throws {TapeError} damaged if it is not where the record says, invalid if there is none, or unsupported
   */
  blobOf({ record, group }) {
    return this.blobs.get(record.call, () => this.blobAt(record, group));
  }

  /** The call of a number, which has tensors for another one. */
  callOfNumber(number) {
    return this.holders.get(number);
  }

  async findHolder(number) {
    const position = this.columns.position(number);
    const { error } = this.broken.get(number) ?? {};
    if (error !== undefined) throw new TapeError(error.kind, `call ${number}, which has the bytes: ${error.message}`);
    if (position === undefined) throw damaged(`there is no call ${number}, which has the bytes`);
    return this.call(position);
  }

  async blobAt(record, group) {
    if (record.blob === undefined) throw invalid(`call ${record.call} has no blob for its tensors`);
    expectKnownBlob(record.blob);
    const offset = group - Number(record.blob.back);
    const member = offset >= this.firstMember && offset < group ? await this.memberAt(offset) : null;
    const isIts = member !== null && member.name === blobName(record.call, record.blob.codec) && member.size === record.blob.size;
    if (!isIts || member.end > group) throw damaged(`the tensors of call ${record.call} are not there`);
    return new Blob(this.source, member, record.call, record.blob, this.inflated);
  }
}
