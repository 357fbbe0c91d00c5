// The scan: a walk over a whole tape that reads every record, and no tensor. A call exists only by
// the commit rule (FORMAT.md, section 5); on a sealed tape the index must have its group (section 8).

import { blobBytes } from "./blob.mjs";
import { Columns } from "./columns.mjs";
import { DistinctInputs, addTo, noCalls } from "./distinct_inputs.mjs";
import { accounted, countsFrom, indexOf, endFrom } from "./endings.mjs";
import { TapeError, damaged, overLimit } from "./errors.mjs";
import { BLOCK, COUNTS, END, isBlob, isGroup, parseHeader } from "./framing.mjs";
import { groupOf } from "./groups.mjs";
import { checkDocuments, haveRanges, isTableOf, tableOf } from "./inputs_table.mjs";
import { MAX_MEMBER_BYTES } from "./limits.mjs";
import { areEqual } from "./nesting.mjs";
import { walk } from "./walk.mjs";
import { Window } from "./windows.mjs";

/** Throws if the content of a msgpack member is larger than a reader takes. */
export function checkMemberSize(member) {
  if (member.size > MAX_MEMBER_BYTES) {
    throw overLimit(`a member has ${member.size} bytes (at most ${MAX_MEMBER_BYTES})`);
  }
}

/** Calls of a group, and the verb that follows. */
function callsAre({ calls, low, high }) {
  if (low === high) return `call ${low} is`;
  return BigInt(calls) === BigInt(high) - BigInt(low) + 1n ? `calls ${low} to ${high} are` : `${calls} of the calls ${low} to ${high} are`;
}

export class Scan {
  /**
   * @param source the file.
   * @param {Uint8Array} tape the id in the manifest.
   * @param end of a sealed tape, which is compared with what is found; else null.
   * @param {(error: TapeError) => void} onCorruption
   */
  constructor(source, tape, end, onCorruption) {
    this.window = new Window(source);
    this.tape = tape;
    this.end = end;
    this.offsets = null; // of the groups in the index
    this.passed = 0; // those that the walk has come past
    this.index = null; // the groups that are not found yet, by offset; null if nothing tells
    this.damaged = new Set(); // offsets
    this.onCorruption = (error) => {
      this.damaged.add(error.offset);
      onCorruption(error);
    };
    this.columns = new Columns();
    this.distinct = new DistinctInputs(source.size);
    this.broken = new Map(); // calls whose record cannot be read, by number: the signature of their inputs, whether they raised, and the error
    this.numbers = new Set(); // of all calls, the broken ones too
    this.raised = 0; // how many of them raised, by the tables of their groups
    this.interim = null; // what the recorder had counted last, of a tape without an end
    this.unfinished = 0; // bytes at the end of calls that were being written
    this.blobs = null; // the offset of blobs whose group comes next
    this.held = null; // the last corruption of the walk, until it is known whether a member follows
  }

  /** Walks from the offset of a header to the end. */
  async run(start, onProgress) {
    if (this.end !== null) {
      this.index = this.end.elsewhere ? new Map() : null;
      await this.located({ name: END, offset: null }, async () => (this.index = await indexOf(this.end)));
    }
    await walk(
      this.window, start, (member) => this.member(member), (error) => this.hold(error), onProgress, this.end?.offset,
    );
    if (this.end === null) this.endUnsealed();
    else await this.located({ name: END, offset: null }, () => this.endSealed());
    for (const [number, { error }] of this.broken) {
      this.onCorruption(new TapeError(error.kind, `call ${number} is skipped: ${error.message}`, error));
    }
  }

  hold(error) {
    this.release();
    this.held = error;
  }

  release() {
    if (this.held !== null) this.onCorruption(this.held);
    this.held = null;
  }

  member(member) {
    this.release();
    if (isBlob(member.name)) this.blobs ??= member.offset;
    else if (isGroup(member.name)) return this.addHidden(member.offset).then(() => this.located(member, () => this.addGroup(member)));
    else if (member.name === COUNTS && this.end === null) return this.addCounts(member);
    else if (member.name === END && member.offset !== this.end?.offset) {
      return this.located(member, () => this.refuseEnd(member));
    }
    return undefined;
  }

  /** Says why an end does not seal the tape: it is broken or not last, or of a later version. */
  async refuseEnd(member) {
    if (member.size <= MAX_MEMBER_BYTES) {
      try {
        endFrom(await this.window.at(member.start, member.size));
      } catch (error) {
        if (error instanceof TapeError && error.kind === "unsupported") throw error;
      }
    }
    throw damaged("the end of the tape cannot be read, or is not last");
  }

  /** Reports what is wrong, with its place. */
  async located(member, work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.onCorruption(error.at({ member: member.name, offset: member.offset }));
    }
  }

  async addGroup(member) {
    this.blobs = null;
    checkMemberSize(member);
    const group = await groupOf(await this.window.at(member.start, member.size), member.offset, this.tape);
    const numbers = Array.from({ length: group.length }, (_, at) => group.number(at));
    const times = numbers.map((_, at) => group.time(at));
    this.compare(numbers, times, member.offset);
    if (new Set(numbers).size < numbers.length || numbers.some((number) => this.numbers.has(number))) {
      throw damaged("a call of the group has the number of another one");
    }
    for (const number of numbers) this.numbers.add(number);
    for (let at = 0; at < group.length; at++) this.raised += group.raised(at) ? 1 : 0;
    const wrong = await group.open().then(() => null, (error) => error);
    numbers.forEach((_, at) => this.addCall(group, at, member, wrong));
  }

  /** Notes counts if they are the last ones. */
  async addCounts(member) {
    if (member.size > MAX_MEMBER_BYTES) return;
    const found = countsFrom(await this.window.at(member.start, member.size));
    if (found === null || !areEqual(found.tape, this.tape)) return;
    if (this.interim === null || found.number > this.interim.number) this.interim = found;
  }

  /** Compares the numbers of a group with the index. */
  compare(numbers, times, offset) {
    if (this.index === null) return;
    const told = this.index.get(offset);
    // Without one, it is bytes inside a damaged tensor that look like a group.
    if (told === undefined) throw damaged("the index of the tape does not have this group here");
    this.index.delete(offset);
    const [[low, high], [first, last]] = [numbers, times].map(spanOf);
    if (told.calls !== numbers.length || told.low !== low || told.high !== high || told.first !== first || told.last !== last) {
      this.onCorruption(damaged(`by the index of the tape, ${callsAre(told)} here`).at({ offset }));
    }
  }

  /** @param wrong what is wrong with the whole group, or null. */
  addCall(group, at, member, wrong) {
    try {
      group.expectKnown(at);
      if (wrong !== null) throw wrong;
      const record = group.record(at, (signature, inputs) => this.distinct.hasSignature(signature, inputs));
      const inputs = this.distinct.numberOf(group.signature(at), record.inputs, record.call, group.raised(at));
      const duration = record.duration_ns === undefined ? NaN : Number(record.duration_ns);
      this.columns.add(record.call, member.offset, Number(record.time_ns), duration, blobBytes(record), inputs, record.error !== undefined);
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.broken.set(group.number(at), { signature: group.signature(at), raised: group.raised(at), error: error.at({ member: member.name, offset: member.offset }) });
    }
  }

  /** A tape without an end may stop within calls that were being written. */
  endUnsealed() {
    const { held, blobs } = this;
    const { size } = this.window;
    const isTorn = held !== null && held.member !== END && (held.member !== null || size - held.offset < BLOCK);
    if (isTorn) this.held = null;
    else this.release();
    const from = isTorn ? held.offset : size;
    this.unfinished = size - Math.min(from, blobs ?? size);
  }

  async endSealed() {
    this.release();
    await this.addHidden(this.window.size);
    const known = new Set(this.damaged);
    for (const [offset, group] of this.index ?? []) {
      if (known.has(offset)) continue;
      this.onCorruption(damaged(`${callsAre(group)} lost, by the index of the tape`).at({ offset }));
    }
    const isWhole = this.damaged.size === 0; // else what was lost would explain any difference
    const { seen } = this.end.coverage;
    const told = accounted(this.end.coverage);
    if (BigInt(seen) !== told) {
      this.onCorruption(damaged(`the end says that ${seen} calls were seen, but accounts for ${told}`).at({ member: END }));
    }
    if (this.end.elsewhere) return;
    if (isWhole) this.compareCounts();
    const wrong = await this.tableCorruption(isWhole);
    if (wrong !== null) throw damaged(`forged or stale table of inputs: ${wrong}`);
  }

  /**
   * Adds the groups before an offset that the index has and the walk did not come to: the member before them says that
   * it is larger than it is. None may reach into the next one, or all together could be read many times.
   */
  async addHidden(until) {
    this.offsets ??= [...(this.index?.keys() ?? [])];
    for (; this.passed < this.offsets.length && this.offsets[this.passed] < until; this.passed++) {
      const [offset, after] = [this.offsets[this.passed], this.offsets[this.passed + 1] ?? this.end.offset];
      const told = this.index.get(offset);
      // It was found, or is not there.
      if (told === undefined || offset + BLOCK > this.window.size || offset % BLOCK !== 0) continue;
      const member = parseHeader(await this.window.at(offset, BLOCK), offset);
      if (member === null || !isGroup(member.name) || member.end > after) continue;
      try {
        await this.addGroup(member);
        this.onCorruption(damaged(`${callsAre(told)} here, by the index of the tape, within another member`).at({ member: member.name, offset }));
      } catch (error) {
        if (!(error instanceof TapeError) || error.kind === "io") throw error;
        this.onCorruption(error.at({ member: member.name, offset }));
      }
    }
    if (this.offsets[this.passed] === until) this.passed++; // the walk is there
  }

  /** Compares what the end says of all calls with what was found. */
  compareCounts() {
    let [low, high] = [undefined, undefined];
    for (const number of this.numbers) {
      if (low === undefined || number < low) low = number;
      if (high === undefined || number > high) high = number;
    }
    const { first_call: first, last_call: last, raised } = this.end;
    if (low !== first || high !== last || BigInt(this.raised) !== BigInt(raised)) {
      this.onCorruption(damaged("the end says other first or last calls, or how many raised, than there are").at({ member: END }));
    }
  }

  /** What is wrong with the table of counted inputs, which is compared with the calls if these are whole; null if nothing is. */
  async tableCorruption(isWhole) {
    try {
      const table = await tableOf(this.end);
      if (table === null) return null;
      checkDocuments(table);
      const counts = isWhole ? this.counts() : null;
      if (counts === null) return null;
      if (!isTableOf(table, counts)) return "it does not count the calls of the tape";
      return this.broken.size > 0 || haveRanges(table, counts) ? null : "it has other ranges of integers than the records";
    } catch (error) {
      if (!(error instanceof TapeError) || error.kind === "io") throw error;
      return error.message;
    }
  }

  /** The calls by the signature of their inputs; null if there were too many different inputs to count. */
  counts() {
    const found = this.distinct.counts();
    if ([...found.values()].reduce((sum, { calls }) => sum + calls, 0n) < this.columns.length) return null;
    for (const [number, { signature, raised }] of this.broken) {
      if (!found.has(signature)) found.set(signature, noCalls());
      addTo(found.get(signature), BigInt(number), raised);
    }
    return found;
  }
}

/** The smallest and the largest of some numbers. */
function spanOf(values) {
  return values.reduce(([least, most], one) => [one < least ? one : least, one > most ? one : most], [values[0], values[0]]);
}
