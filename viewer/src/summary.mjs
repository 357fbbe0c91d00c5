// The summary of a sealed tape: what its calls were called with, together (FORMAT.md, section 8).

import { isInt, openEnvelope, unpack } from "./documents.mjs";
import { ENDING } from "./endings.mjs";
import { damaged, invalid, overLimit } from "./errors.mjs";
import { array, bytes, count, int, int64, optional, record, tuple, withDefault } from "./fields.mjs";
import { inflateZlib } from "./inflation.mjs";
import {
  LARGE_INPUT_BYTES, MAX_INPUTS, MAX_INPUT_BYTES, MAX_INPUT_COST, MAX_NODES, SCALAR_COST,
} from "./limits.mjs";
import { tree } from "./records.mjs";

const rangeOfRow = tuple(int(0, MAX_INPUTS - 1), int(0, MAX_NODES - 1), int64, int64);

const inputs = record({
  size: int(0, MAX_INPUT_BYTES),
  packed: bytes(),
  calls: bytes(),
  firsts: bytes(),
  lasts: bytes(),
  raised: bytes(),
  ranges: withDefault(array(rangeOfRow, MAX_INPUTS), []),
});

const summary = record({
  ...ENDING,
  first_call: optional(count),
  last_call: optional(count),
  first_ns: optional(count),
  last_ns: optional(count),
  raised: withDefault(count, 0),
  tensor_bytes: withDefault(count, 0),
  inputs: optional(inputs),
});

function column(bytes, rows) {
  if (bytes.length !== 8 * rows) throw invalid("columns of different lengths");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: rows }, (_, row) => view.getBigUint64(8 * row, true));
}

/**
 * The summary from the content of its member. `rows` has the distinct inputs: each with `tree` (as
 * in a record), `raised`, and the bigints `calls`, `first` and `last`; null if the tape has none.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function summaryOf(content) {
  const found = summary(unpack(openEnvelope(content)));
  const { kept } = found.coverage;
  if (found.raised > kept) throw invalid(`${found.raised} of ${kept} calls raised`);
  return { ...found, rows: found.inputs === undefined ? null : rowsOf(found) };
}

function rowsOf({ inputs, coverage, raised, first_call, last_call }) {
  const count = inputs.raised.length;
  if (count > MAX_INPUTS) throw invalid("too many rows");
  if (inputs.raised.some((flag) => flag > 1)) throw invalid("a flag that is neither 0 nor 1");
  const [calls, firsts, lasts] = [inputs.calls, inputs.firsts, inputs.lasts].map((one) => column(one, count));
  if (inputs.ranges.some(([row, , low, high]) => row >= count || low > high)) throw invalid("a range of no row");
  const sum = (flag) => calls.reduce((total, one, row) => total + (flag(row) ? one : 0n), 0n);
  if (sum(() => true) !== BigInt(coverage.kept) || calls.includes(0n)) throw invalid("inputs of other calls");
  if (sum((row) => inputs.raised[row] === 1) !== BigInt(raised)) throw invalid("other calls raised");
  if (firsts.some((first, row) => first > lasts[row])) throw invalid("calls that end before they begin");
  const lowest = firsts.reduce((low, one) => (low === null || one < low ? one : low), null);
  const highest = lasts.reduce((high, one) => (high === null || one > high ? one : high), null);
  const same = (one, other) => (one === null ? other === undefined : other !== undefined && one === BigInt(other));
  if (!same(lowest, first_call) || !same(highest, last_call)) throw invalid("numbers of calls that contradict");
  const reader = new RowReader(inflateZlib(inputs.packed, inputs.size));
  const ranges = rangesByRow(inputs.ranges);
  const rows = calls.map((calls, row) => ({
    tree: tree({ ...reader.next(), ranges: ranges.get(row) ?? [] }),
    raised: inputs.raised[row] === 1,
    calls,
    first: firsts[row],
    last: lasts[row],
  }));
  reader.expectEnd();
  return rows;
}

function rangesByRow(ranges) {
  const found = new Map();
  for (const [row, leaf, min, max] of ranges) {
    if (!found.has(row)) found.set(row, []);
    found.get(row).push({ leaf, min, max });
  }
  return found;
}

/** Reads one row of inputs after another. */
class RowReader {
  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.length);
    this.at = 0;
    this.cost = 0;
    this.structures = [];
    this.leaves = [];
  }

  next() {
    if (this.at + 4 > this.data.length) throw damaged("a row of the summary is cut short");
    const start = this.at + 4;
    const end = start + this.view.getUint32(this.at, true);
    if (end > this.data.length) throw damaged("a row of the summary is cut short");
    this.at = end;
    const row = unpack(this.data.subarray(start, end));
    if (!Array.isArray(row) || row.length !== 3 || !Array.isArray(row[2])) {
      throw damaged("a row of the summary is no array of three");
    }
    const before = this.cost;
    const structure = this.part(row[0], this.structures);
    const leaves = this.part(row[1], this.leaves);
    this.cost += SCALAR_COST * (end - start - (this.cost - before));
    for (const part of [structure, leaves]) if (part.length > LARGE_INPUT_BYTES) this.cost += part.length;
    if (this.cost > MAX_INPUT_COST) throw overLimit("the inputs of the summary take too much memory");
    return { structure, leaves, scalars: row[2] };
  }

  part(part, known) {
    if (part instanceof Uint8Array) {
      known.push(part);
      this.cost += part.length;
      return part;
    }
    if (isInt(part) && part >= 0 && part < known.length) return known[part];
    throw damaged("a row of the summary refers to no earlier row");
  }

  expectEnd() {
    if (this.at !== this.data.length) throw damaged("the summary has more rows than counts");
  }
}
