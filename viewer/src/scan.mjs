// The scan: a walk over a whole tape that reads every record, and no tensor. A call exists only by
// the commit rule (FORMAT.md, section 5); on a sealed tape the index must have it (section 8).

import { Columns } from "./columns.mjs";
import { DistinctInputs } from "./distinct_inputs.mjs";
import { openEnvelope, plainInt } from "./documents.mjs";
import { indexOf, trailerOf } from "./endings.mjs";
import { TapeError, damaged, overLimit } from "./errors.mjs";
import { BLOCK, TRAILER, callMember, recordName } from "./framing.mjs";
import { checkGroupSize, eachEntry } from "./groups.mjs";
import { MAX_DOCUMENT_BYTES } from "./limits.mjs";
import { recordOf } from "./records.mjs";
import { walk } from "./walk.mjs";
import { Window } from "./windows.mjs";

export const sameBytes = (one, other) =>
  one.length === other.length && one.every((byte, at) => byte === other[at]);

/** Throws if the content of a msgpack member is larger than a reader takes. */
export function checkMemberSize(member) {
  if (member.size > MAX_DOCUMENT_BYTES + BLOCK) {
    throw overLimit(`a member has ${member.size} bytes (at most ${MAX_DOCUMENT_BYTES})`);
  }
}

export class Scan {
  /**
   * @param source the file.
   * @param {Uint8Array} tape the id in the manifest.
   * @param {(error: TapeError) => void} onDamage
   */
  constructor(source, tape, onDamage) {
    this.window = new Window(source);
    this.tape = tape;
    this.onDamage = onDamage;
    this.columns = new Columns();
    this.distinct = new DistinctInputs();
    this.trailer = null;
    this.unfinished = 0; // bytes at the end of a call that was being written
    this.places = new Map(); // call number -> offset of its first member
    this.lost = new Set();
    this.pending = null; // a blob whose record comes next
    this.held = null; // the last damage of the walk, until it is known whether a member follows
    this.torn = null; // a bad entry with nothing but zeros after it in its group
  }

  /** Walks from the offset of a header to the end. */
  async run(start, onProgress) {
    await walk(
      this.window, start, (member) => this.member(member), (error) => this.hold(error), onProgress,
    );
    if (this.trailer === null) this.endUnsealed();
    else this.endSealed();
  }

  hold(error) {
    this.release();
    this.held = error;
  }

  release() {
    if (this.held !== null) this.onDamage(this.held);
    this.held = null;
  }

  releaseEntry() {
    if (this.torn !== null) this.onDamage(this.torn.error);
    this.torn = null;
  }

  lose(number, error, member) {
    this.lost.add(number);
    error.message = `call ${number} is skipped: ${error.message}`;
    this.onDamage(error.at({ member: member.name, offset: member.offset }));
  }

  dropPending() {
    if (this.pending === null) return;
    const { number, member } = this.pending;
    this.pending = null;
    this.lose(number, damaged("its record is missing"), member);
  }

  member(member) {
    this.release();
    this.releaseEntry();
    if (member.name === TRAILER) return this.withContent(member, (content) => this.addTrailer(content));
    const call = callMember(member.name);
    if (call === null) return undefined;
    if (call.kind === "safetensors") {
      this.dropPending();
      this.pending = { number: call.number, member };
      return undefined;
    }
    const blob = this.pending?.number === call.number ? this.pending.member : null;
    if (blob === null || call.kind === "records") this.dropPending();
    this.pending = null;
    if (call.kind === "records") {
      return this.withContent(member, (content) => this.addGroup(member, content), checkGroupSize);
    }
    return this.withContent(
      member, (content) => this.commit(member, call.number, blob, content), checkMemberSize,
      (error) => this.lose(call.number, error, member),
    );
  }

  /** Reads the content of a member and uses it, at once if it is in memory already. */
  withContent(member, use, check = checkMemberSize, onError = (error) => this.report(member, error)) {
    const attempt = (content) => {
      try {
        use(content);
      } catch (error) {
        if (!(error instanceof TapeError)) throw error;
        onError(error);
      }
    };
    try {
      check(member);
    } catch (error) {
      onError(error);
      return undefined;
    }
    const known = this.window.peek(member.start, member.size);
    if (known === null) return this.window.at(member.start, member.size).then(attempt);
    attempt(known);
    return undefined;
  }

  report(member, error) {
    this.onDamage(error.at({ member: member.name, offset: member.offset }));
  }

  commit(member, number, blob, content) {
    const record = recordOf(openEnvelope(content));
    this.expectOwn(record);
    if (record.call !== number) throw damaged(`its record says that it is call ${record.call}`);
    this.expectNew(number);
    if (record.blob !== undefined && blob?.size !== record.blob.size) {
      const found = blob === null ? "has no blob" : `has a blob of ${blob.size} bytes`;
      throw damaged(`its record says that its blob has ${record.blob.size} bytes, but the tape ${found}`);
    }
    this.add(record, record.blob === undefined ? member.offset : blob.offset, member.offset);
  }

  expectOwn(record) {
    if (!sameBytes(record.tape, this.tape)) throw damaged("its record belongs to another tape");
  }

  expectNew(number) {
    if (this.places.has(number)) throw damaged("another call before it has the same number");
  }

  add(record, offset, own) {
    this.places.set(record.call, offset);
    const raised = record.error !== undefined;
    const inputs = this.distinct.numberOf(record.inputs, raised, record.call);
    const duration = record.duration_ns === undefined ? NaN : Number(record.duration_ns);
    const blob = record.blob === undefined ? 0 : Number(record.blob.size);
    this.columns.add(record.call, offset, own, Number(record.time_ns), duration, blob, inputs, raised);
  }

  addGroup(member, content) {
    eachEntry(
      content,
      (payload) => {
        const record = recordOf(payload);
        this.expectOwn(record);
        if (record.blob !== undefined) {
          this.lost.add(record.call);
          throw damaged(`call ${record.call} is skipped: a record in a group has a blob`);
        }
        this.expectNew(record.call);
        this.add(record, member.offset, member.offset);
      },
      (error, at, end) => {
        error.at({ member: member.name, offset: member.start + at });
        const isLast = end <= content.length && content.subarray(end).every((byte) => byte === 0);
        // Its writer may have been interrupted, if nothing follows the group either.
        if (isLast) this.torn = { error, bytes: end - at };
        else this.onDamage(error);
      },
    );
  }

  addTrailer(content) {
    this.dropPending();
    const found = trailerOf(content);
    if (!sameBytes(found.tape, this.tape)) throw damaged("the trailer belongs to another tape");
    this.trailer = { ...found, index: found.index.slice() };
  }

  /** A tape without a trailer may end within a call that was being written. */
  endUnsealed() {
    const { held, pending, torn } = this;
    const { size } = this.window;
    const isTorn = held !== null && held.member !== TRAILER && (held.member !== null || size - held.offset < BLOCK);
    if (held !== null && !isTorn) {
      this.release();
      this.dropPending();
      this.releaseEntry();
      return;
    }
    this.held = this.torn = this.pending = null;
    const from = pending?.member.offset ?? held?.offset ?? size;
    this.unfinished = size - from + (torn?.bytes ?? 0);
  }

  endSealed() {
    this.dropPending();
    this.releaseEntry();
    this.release();
    const { seen, kept, dropped } = this.trailer.coverage;
    const told = dropped.reduce((sum, [, calls]) => sum + BigInt(calls), BigInt(kept));
    if (BigInt(seen) !== told) {
      const reason = `the trailer says that ${seen} calls were seen, but accounts for ${told}`;
      this.onDamage(damaged(reason).at({ member: TRAILER }));
    }
    this.compareIndex();
  }

  compareIndex() {
    const { numbers, offsets } = indexOf(this.trailer);
    if (this.isInOrder(numbers, offsets)) return;
    const index = new Map();
    for (let at = 0; at < numbers.length; at++) index.set(plainInt(numbers[at]), offsets[at]);
    for (const [number, offset] of index) {
      if (this.places.has(number) || this.lost.has(number)) continue;
      const reason = `call ${number} is lost: by the tape's index, it was here`;
      this.onDamage(damaged(reason).at({ member: recordName(number), offset }));
    }
    const kept = [];
    let position = 0;
    for (const [number, offset] of this.places) {
      if (index.get(number) === offset) kept.push(position);
      else this.removeStranger(number, offset);
      position += 1;
    }
    if (kept.length !== position) this.columns.keep(kept);
  }

  /** Whether the index has the same calls in the same order, as that of a sound tape. */
  isInOrder(numbers, offsets) {
    const { columns } = this;
    return columns.length === numbers.length &&
      numbers.every((number, at) => number === columns.numbers[at] && offsets[at] === columns.offsets[at]);
  }

  /** A call that the index does not have: bytes inside a damaged tensor that look like members. */
  removeStranger(number, offset) {
    this.places.delete(number);
    const reason = `call ${number} is skipped: the tape's index does not have it here`;
    this.onDamage(damaged(reason).at({ member: recordName(number), offset }));
  }
}
