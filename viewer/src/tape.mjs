// A tape: what its ends say of all calls, and each call when it is asked for.
//
// A sealed tape is opened from its end: the index says where each call is, the summary what the
// calls were called with. Both are statements of the tape until a scan compared them with the records.

import { Columns } from "./columns.mjs";
import { Call } from "./call.mjs";
import { openEnvelope } from "./documents.mjs";
import { endOf, indexOf, trailerOf } from "./endings.mjs";
import { TapeError, damaged } from "./errors.mjs";
import { BLOCK, MANIFEST, SUMMARY, callMember, parseHeader } from "./framing.mjs";
import { checkGroupSize, eachEntry } from "./groups.mjs";
import { manifestOf } from "./manifest.mjs";
import { recordOf } from "./records.mjs";
import { Scan, checkMemberSize, sameBytes } from "./scan.mjs";
import { staleReasons } from "./stale_summary.mjs";
import { summaryOf } from "./summary.mjs";
import { Window, exactly } from "./windows.mjs";

const MOST_BETWEEN = 64; // unknown members between a blob and its record

/**
 * Opens a tape: reads its manifest, and nothing else.
 *
 * @throws {TapeError} not_a_tape, version, damaged, invalid, limit
 */
export async function openTape(source) {
  const block = await exactly(source, 0, Math.min(BLOCK, source.size));
  const member = parseHeader(block, 0);
  const isCut = member !== null && member.start + member.size > source.size;
  if (member === null || isCut || member.name !== MANIFEST) {
    if (String.fromCharCode(...block.subarray(0, MANIFEST.length)) === MANIFEST) {
      const reason = isCut || block.length < BLOCK ? "the file ends within its manifest" : "its header is damaged";
      throw damaged(reason).at({ member: MANIFEST, offset: 0 });
    }
    throw new TapeError("not_a_tape", "the file does not start with a tape's manifest");
  }
  try {
    checkMemberSize(member);
    const manifest = manifestOf(await exactly(source, member.start, member.size));
    return new Tape(source, manifest, member.end);
  } catch (error) {
    throw error instanceof TapeError ? error.at({ member: MANIFEST, offset: 0 }) : error;
  }
}

export class Tape {
  constructor(source, manifest, firstMember) {
    this.source = source;
    this.manifest = manifest;
    this.firstMember = firstMember;
    this.damage = [];
    this.trailer = null;
    this.summary = null;
    this.columns = new Columns();
    this.distinct = null; // the distinct inputs of a scan
    this.isScanned = false;
    this.unfinished = 0;
    this.window = new Window(source);
    this.group = null; // the records of the group that was read last
  }

  get isSealed() {
    return this.trailer !== null;
  }

  addDamage(error) {
    const isKnown = this.damage.some((one) =>
      one.offset === error.offset && one.member === error.member && one.message === error.message);
    if (!isKnown) this.damage.push(error);
  }

  /** Reads the end of a sealed tape. Returns whether it told where the calls are. */
  async readEnd() {
    const found = await endOf(this.source);
    if (found === null) return false;
    try {
      checkMemberSize(found.trailer);
      const trailer = trailerOf(await exactly(this.source, found.trailer.start, found.trailer.size));
      if (!sameBytes(trailer.tape, this.manifest.tape)) return false;
      this.trailer = trailer;
    } catch (error) {
      if (error instanceof TapeError) return false; // the scan says what is wrong
      throw error;
    }
    const { numbers, offsets } = indexOf(this.trailer);
    const { columns } = this;
    for (let at = 0; at < numbers.length; at++) columns.add(numbers[at], offsets[at], NaN, NaN, NaN, NaN, 0, false);
    if (found.summary !== null) await this.readSummary(found.summary);
    return true;
  }

  async readSummary(member) {
    try {
      checkMemberSize(member);
      const summary = summaryOf(await exactly(this.source, member.start, member.size));
      if (sameBytes(summary.tape, this.manifest.tape)) this.summary = summary;
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.addDamage(stale(error.message));
    }
  }

  /**
   * Reads every record, and compares what the end says with them.
   *
   * @param onProgress called with the offset that was reached; a promise that it returns is waited for.
   */
  async scan(onProgress = () => undefined) {
    if (this.summary === null && this.trailer === null) await this.readEnd();
    const scan = new Scan(this.source, this.manifest.tape, (error) => this.addDamage(error));
    await scan.run(this.firstMember, onProgress);
    this.trailer = scan.trailer;
    this.columns = scan.columns;
    this.distinct = scan.distinct;
    this.unfinished = scan.unfinished;
    this.isScanned = true;
    if (this.summary !== null) {
      for (const reason of staleReasons(this.summary, scan)) this.addDamage(stale(reason));
    }
  }

  /** The call at a position of the columns. Its record and trees are checked.
   *
   * @throws {TapeError} damaged, invalid or limit
   */
  async call(position) {
    const number = this.columns.number(position);
    const offset = this.columns.offsets[position];
    const place = this.columns.records[position];
    const { record, blob } = Number.isNaN(place)
      ? await this.locate(number, offset)
      : await this.recordAt(number, await this.memberAt(place), place === offset ? null : await this.memberAt(offset));
    if (!sameBytes(record.tape, this.manifest.tape)) throw damaged("its record belongs to another tape");
    return new Call(this.source, record, blob);
  }

  /** The record of a call, and the member of its blob, from the offset of its first member. */
  async locate(number, offset) {
    let blob = null;
    let member = await this.memberAt(offset);
    for (let tries = 0; tries < MOST_BETWEEN && member !== null; tries++) {
      const call = callMember(member.name);
      if (call !== null && call.kind !== "safetensors") return this.recordAt(number, member, blob);
      if (call !== null) blob = member;
      member = await this.memberAt(member.end);
    }
    throw damaged(`call ${number} is not where the tape's index says`).at({ offset });
  }

  /** The record of a call, which is a member or in one, and the member of its blob, if it has one. */
  async recordAt(number, member, blob) {
    const call = member === null ? null : callMember(member.name);
    if (call?.kind === "records") return { record: await this.gathered(member, number), blob: null };
    if (call?.kind === "msgpack" && call.number === number) {
      return { record: await this.recordIn(member, number, blob), blob };
    }
    throw damaged(`call ${number} is not where the tape says`);
  }

  async memberAt(offset) {
    if (!Number.isSafeInteger(offset) || offset + BLOCK > this.source.size) return null;
    const member = parseHeader(await this.window.at(offset, BLOCK), offset);
    return member === null || member.start + member.size > this.source.size ? null : member;
  }

  async recordIn(member, number, blob) {
    checkMemberSize(member);
    const record = recordOf(openEnvelope(await this.window.at(member.start, member.size)));
    if (record.call !== number) throw damaged(`its record says that it is call ${record.call}`);
    const isOther = record.blob?.size !== blob?.size || (blob !== null && callMember(blob.name)?.number !== number);
    if (record.blob !== undefined && isOther) throw damaged("its blob is missing");
    return record;
  }

  /** A record in a group. The records of the group are remembered, until another one is read. */
  async gathered(member, number) {
    if (this.group?.offset !== member.offset) {
      checkGroupSize(member);
      const records = new Map();
      const content = (await this.window.at(member.start, member.size)).slice();
      try {
        eachEntry(content, (payload) => {
          const record = recordOf(payload);
          const isOwn = sameBytes(record.tape, this.manifest.tape) && record.blob === undefined;
          if (isOwn && !records.has(record.call)) records.set(record.call, record);
        }, () => undefined);
      } catch (error) {
        if (!(error instanceof TapeError)) throw error; // the scan reports it
      }
      this.group = { offset: member.offset, records };
    }
    const found = this.group.records.get(number);
    if (found === undefined) throw damaged(`call ${number} is not in its group`).at({ offset: member.offset });
    return found;
  }
}

const stale = (reason) => damaged(`forged or stale summary: ${reason}`).at({ member: SUMMARY });
