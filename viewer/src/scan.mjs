// The scan: a walk over a whole tape that reads every record, and no tensor. A call exists only by
// the commit rule (FORMAT.md, section 5); on a sealed tape the index must have its group (section 8).

import { Columns } from "./columns.mjs";
import { DistinctInputs, areEqual } from "./distinct_inputs.mjs";
import { endOf, indexOf } from "./endings.mjs";
import { TapeError, damaged, overLimit } from "./errors.mjs";
import { BLOCK, END, isBlob, isGroup } from "./framing.mjs";
import { groupOf } from "./groups.mjs";
import { isTableOf, tableOf } from "./inputs_table.mjs";
import { MAX_MEMBER_BYTES } from "./limits.mjs";
import { walk } from "./walk.mjs";
import { Window } from "./windows.mjs";

/** Throws if the content of a msgpack member is larger than a reader takes. */
export function checkMemberSize(member) {
  if (member.size > MAX_MEMBER_BYTES) {
    throw overLimit(`a member has ${member.size} bytes (at most ${MAX_MEMBER_BYTES})`);
  }
}

const callsText = (calls, low, high) => {
  if (BigInt(calls) !== BigInt(high) - BigInt(low) + 1n) return `${calls} of the calls ${low} to ${high}`;
  return low === high ? `call ${low}` : `calls ${low} to ${high}`;
};

export class Scan {
  /**
   * @param source the file.
   * @param {Uint8Array} tape the id in the manifest.
   * @param {(error: TapeError) => void} onDamage
   */
  constructor(source, tape, onDamage) {
    this.window = new Window(source);
    this.tape = tape;
    this.damaged = new Set(); // offsets
    this.onDamage = (error) => {
      this.damaged.add(error.offset);
      onDamage(error);
    };
    this.columns = new Columns();
    this.distinct = new DistinctInputs(source.size);
    this.end = null;
    this.unfinished = 0; // bytes at the end of calls that were being written
    this.numbers = new Set(); // of all calls, those that cannot be read too
    this.groups = { offsets: [], calls: [], lows: [], highs: [] };
    this.broken = new Map(); // calls whose record cannot be read, by number: the hash of their inputs, and the error
    this.blobs = null; // the offset of blobs whose group comes next
    this.held = null; // the last damage of the walk, until it is known whether a member follows
  }

  /** Walks from the offset of a header to the end. */
  async run(start, onProgress) {
    await walk(
      this.window, start, (member) => this.member(member), (error) => this.hold(error), onProgress,
    );
    if (this.end === null) this.endUnsealed();
    else await this.endSealed();
    for (const [number, { error }] of this.broken) {
      this.onDamage(new TapeError(error.kind, `call ${number} is skipped: ${error.message}`, error));
    }
  }

  hold(error) {
    this.release();
    this.held = error;
  }

  release() {
    if (this.held !== null) this.onDamage(this.held);
    this.held = null;
  }

  member(member) {
    this.release();
    if (isBlob(member.name)) this.blobs ??= member.offset;
    else if (isGroup(member.name)) return this.addGroup(member);
    else if (member.name === END) return this.located(member, () => this.addEnd(member));
    return undefined;
  }

  async contentOf(member) {
    checkMemberSize(member);
    return this.window.at(member.start, member.size);
  }

  /** Reports what is wrong, with its place. */
  async located(member, work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.onDamage(error.at({ member: member.name, offset: member.offset }));
    }
  }

  async addGroup(member) {
    this.blobs = null;
    await this.located(member, async () => {
      const group = groupOf(await this.contentOf(member));
      if (!areEqual(group.tape, this.tape)) throw damaged("a group belongs to another tape");
      this.expectNew(group, member);
      const wrong = await group.open().then(() => null, (error) => error);
      for (let at = 0; at < group.length; at++) this.addCall(group, at, member, wrong);
    });
  }

  /** Notes the numbers of a group, if no group before has one of them. */
  expectNew(group, member) {
    const numbers = new Set();
    let [low, high] = [Infinity, -1];
    for (let at = 0; at < group.length; at++) {
      const number = group.number(at);
      if (numbers.has(number) || this.numbers.has(number)) {
        throw damaged("a call of the group has the number of another one");
      }
      numbers.add(number);
      if (number < low) low = number;
      if (number > high) high = number;
    }
    for (const number of numbers) this.numbers.add(number);
    const { offsets, calls, lows, highs } = this.groups;
    offsets.push(member.offset);
    calls.push(group.length);
    lows.push(low);
    highs.push(high);
  }

  /** @param wrong what is wrong with the whole group, or null. */
  addCall(group, at, member, wrong) {
    try {
      if (wrong !== null) throw wrong;
      const record = group.record(at, (hash, inputs) => this.distinct.hasHash(hash, inputs));
      const inputs = this.distinct.numberOf(group.hash(at), record.inputs, record.call);
      const duration = record.duration_ns === undefined ? NaN : Number(record.duration_ns);
      const blob = record.blob === undefined ? 0 : Number(record.blob.size);
      this.columns.add(record.call, member.offset, Number(record.time_ns), duration, blob, inputs, record.error !== undefined);
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      this.broken.set(group.number(at), { hash: group.hash(at), error: error.at({ member: member.name, offset: member.offset }) });
    }
  }

  async addEnd(member) {
    const found = endOf((await this.contentOf(member)).slice());
    if (!areEqual(found.tape, this.tape)) throw damaged("the end belongs to another tape");
    this.end = found;
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
    const { seen, kept, dropped } = this.end.coverage;
    const told = dropped.reduce((sum, [, calls]) => sum + BigInt(calls), BigInt(kept));
    await this.located({ name: END, offset: null }, async () => {
      if (BigInt(seen) !== told) {
        this.onDamage(damaged(`the end says that ${seen} calls were seen, but accounts for ${told}`).at({ member: END }));
      }
      this.compareIndex(await indexOf(this.end));
      if (this.damaged.size > 0 || this.end.elsewhere) return;
      const table = await tableOf(this.end);
      if (table !== null && this.areCounted && !isTableOf(table, this.counts())) {
        throw damaged("forged or stale table of inputs: it does not count the calls of the tape");
      }
    });
  }

  /** Whether the distinct inputs of all calls were told apart. */
  get areCounted() {
    return this.distinct.entries.reduce((sum, one) => sum + one.calls, 0n) === BigInt(this.columns.length);
  }

  /** How many calls have inputs of which hash. */
  counts() {
    const found = this.distinct.counts();
    for (const { hash } of this.broken.values()) found.set(hash, (found.get(hash) ?? 0n) + 1n);
    return found;
  }

  compareIndex(index) {
    const { groups } = this;
    if (Object.keys(groups).every((name) => areEqual(groups[name], index[name]))) return;
    const told = new Map(Array.from(index.offsets, (offset, at) => [offset, at]));
    const found = new Map(groups.offsets.map((offset, at) => [offset, at]));
    const report = (reason, offset) => this.onDamage(damaged(reason).at({ offset }));
    const isKnown = new Set(this.damaged);
    for (const [offset, at] of told) {
      const text = callsText(index.calls[at], index.lows[at], index.highs[at]);
      const there = found.get(offset);
      if (there === undefined) {
        if (!isKnown.has(offset)) report(`${text} are lost: by the index of the tape, they were here`, offset);
      } else if (callsText(groups.calls[there], groups.lows[there], groups.highs[there]) !== text) {
        report(`by the index of the tape, ${text} are here`, offset);
      }
    }
    // A group that the index does not have is bytes inside a damaged tensor that look like one.
    const strangers = groups.offsets.filter((offset) => !told.has(offset));
    for (const offset of strangers) {
      report(`${groups.calls[found.get(offset)]} calls are skipped: the index of the tape does not have them here`, offset);
    }
    if (strangers.length > 0) this.keepOf(told);
  }

  /** Removes the calls of groups that are not at these offsets. */
  keepOf(told) {
    const { columns, distinct } = this;
    const positions = Array.from({ length: columns.length }, (_, at) => at);
    columns.keep(positions.filter((at) => told.has(columns.offsets[at])));
    distinct.recount(columns);
    for (const [number, { error }] of this.broken) if (!told.has(error.offset)) this.broken.delete(number);
  }
}
