// The table of counted inputs: what a model was called with, and how often (FORMAT.md, section 8).

import { isInt, unpack } from "./documents.mjs";
import { invalid, overLimit } from "./errors.mjs";
import { array, bytes, count, int, int64, optional, record, text, tuple, withDefault } from "./fields.mjs";
import { contentOf, sectionOf } from "./sections.mjs";
import {
  MAX_COUNT, MAX_KIND_BYTES, MAX_KIND_COSTS, MAX_NAME, MAX_NODES, MAX_RANK, MAX_ROWS, MAX_ROW_COSTS,
  MAX_SIGNATURE, MAX_SIZES, MAX_TABLE_BYTES, MAX_UINT64,
} from "./limits.mjs";
import { packedArray } from "./packing.mjs";
import { partsOfInputs, recordedScalars, rootOfInputs } from "./records.mjs";
import { signatureOf } from "./signatures.mjs";
import { structureOf } from "./structure.mjs";

const calls = tuple(count, count, count);
const nilOr = (check) => (value) => (value === null ? null : check(value));
const ranges = array(tuple(int(0, MAX_NODES - 1), int64, int64), MAX_NODES);

const kind = record({
  structure: bytes(),
  dtypes: array(text(MAX_NAME, 1), MAX_NODES),
  ranks: array(int(0, MAX_RANK), MAX_NODES),
  axes: array(nilOr(tuple(array(tuple(int64, count)), count, int64))),
  calls,
});

const table = record({
  parts: withDefault(array(bytes()), []),
  rows: withDefault(array(tuple(count, count, bytes(), bytes()), MAX_ROWS), []),
  numbers: withDefault(bytes(), new Uint8Array(0)),
  kinds: withDefault(array(kind, MAX_KIND_COSTS), []),
  other: withDefault(calls, [0, 0, 0]),
  rows_below: optional(int(0, MAX_SIGNATURE)),
  kinds_below: optional(int(0, MAX_SIGNATURE)),
});

const COLUMNS = 6;
const RANGE_COST = 32;
const MOST_OF_HEADER = 5; // bytes before the elements of a msgpack array; a range takes 32 at most
const LARGEST_PART = 4; // of the room, that one row or kind may take

const wrong = (what) => invalid(`the table of inputs: ${what}`);

/**
 * The table of an end; null if it has none. `rows` have the parts of distinct inputs (`structure`, `leaves`,
 * and `scalars`, which are packed), and of the calls with them the bigints `seen`, `calls` (how many are
 * kept), `raised`, `first`, `last` and `example`, and the `ranges`. `rest` is how many kept calls have no
 * row. The other fields are as in the end.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export async function tableOf({ inputs, coverage }) {
  if (inputs === undefined) return null;
  const found = table(unpack(await contentOf(sectionOf(inputs, "the table of inputs"), MAX_TABLE_BYTES, "the table of inputs")));
  const rows = rowsOf(found);
  checkAscend(rows.map((row) => row.signature), found.rows_below);
  checkKinds(found.kinds);
  checkAscend(found.kinds.map(signatureOfKind), found.kinds_below);
  const others = [...found.kinds.map((one) => one.calls), found.other];
  others.forEach(([seen, kept, raised]) => checkCounts(seen, kept, raised));
  const sum = (name, at) => [...rows.map((row) => row[name]), ...others.map((one) => one[at])].reduce((total, one) => total + BigInt(one), 0n);
  const [seen, kept] = [sum("seen", 0), sum("calls", 1)];
  if (kept !== BigInt(coverage.kept) || seen > coverage.seen) throw wrong(`it has ${kept} kept calls of ${seen}`);
  return { ...found, rows, rest: others.reduce((total, one) => total + BigInt(one[1]), 0n) };
}

function checkCounts(seen, kept, raised) {
  if (kept > seen || raised > seen) throw wrong(`${kept} calls kept and ${raised} raised of ${seen}`);
}

/** Each row, and each kind, stands once, in the order of the signatures. */
function checkAscend(signatures, below) {
  if (!signatures.every((one, at) => at === 0 || signatures[at - 1] < one)) {
    throw wrong("inputs or kinds that stand twice, or do not ascend by their signature");
  }
  if (below !== undefined && signatures.length > 0 && signatures.at(-1) >= below) throw wrong("inputs or kinds without room");
}

const signatureOfKind = ({ structure, dtypes, ranks, axes }) =>
  signatureOf(structure, packedArray([dtypes, ranks, axes.length]), new Uint8Array(0));

function rowsOf({ rows, numbers, parts }) {
  if (numbers.length !== 8 * COLUMNS * rows.length) throw wrong("numbers for another number of rows");
  const view = new DataView(numbers.buffer, numbers.byteOffset, numbers.length);
  let costs = 0;
  return rows.map(([structure, leaves, scalars, ranges], at) => {
    if (structure >= parts.length || leaves >= parts.length) throw wrong("a row without its parts");
    const row = { structure: parts[structure], leaves: parts[leaves], scalars };
    const ints = intsIn(row.leaves);
    if (ranges.length > MOST_OF_HEADER + RANGE_COST * ints) throw wrong("a row with ranges of leaves that have no integers");
    const cost = 64 + Math.floor(row.structure.length / 4) + row.leaves.length + scalars.length + RANGE_COST * ints;
    costs += cost;
    if (costs > MAX_ROW_COSTS || cost > MAX_ROW_COSTS / LARGEST_PART) throw overLimit(`the rows of the table of inputs cost more than ${MAX_ROW_COSTS}`);
    const [seen, kept, raised, first, last, example] = Array.from({ length: COLUMNS }, (_, column) => view.getBigUint64(8 * (COLUMNS * at + column), true));
    checkCounts(seen, kept, raised);
    const isExample = kept === 0n ? example === MAX_UINT64 : example >= first && example <= last;
    if (seen === 0n || first > last || last > MAX_COUNT || !isExample) throw wrong("a row contradicts itself");
    const signature = signatureOf(row.structure, row.leaves, scalars);
    return { ...row, signature, seen, calls: kept, raised, first, last, example, ranges: rangesOf(ranges) };
  });
}

/** How often "int" stands in leaves: as many may have ranges. */
function intsIn(leaves) {
  let ints = 0;
  for (let at = leaves.indexOf(0x69); at >= 0; at = leaves.indexOf(0x69, at + 1)) {
    if (leaves[at + 1] === 0x6e && leaves[at + 2] === 0x74) ints += 1;
  }
  return ints;
}

function rangesOf(data) {
  const found = data.length > 0 ? ranges(unpack(data)) : [];
  if (found.some(([, low, high]) => low > high)) throw wrong("a range without an element");
  if (new Set(found.map(([leaf]) => leaf)).size < found.length) throw wrong("two ranges of a leaf");
  return found;
}

function checkKinds(kinds) {
  let costs = 0;
  let size = 0;
  for (const { structure, dtypes, ranks, axes, calls: [seen] } of kinds) {
    const cost = 1 + axes.length + dtypes.length;
    costs += cost;
    size += structure.length;
    if (cost > MAX_KIND_COSTS / LARGEST_PART) throw overLimit("a kind of the table of inputs costs too much");
    const sizes = ranks.reduce((sum, rank) => sum + rank, 0);
    if (seen === 0 || dtypes.length !== ranks.length || sizes > axes.length) throw wrong("a kind does not fit its parts");
    axes.forEach((axis, at) => {
      const counted = axis === null ? 0n : countedOn(axis);
      if (counted > seen || (at < sizes && counted !== BigInt(seen))) throw wrong("an axis does not count the calls of its kind");
      if (at < sizes && (axis[0][0][0] < 0 || axis[2] > MAX_COUNT)) throw wrong("a size that no tensor has");
    });
  }
  if (costs > MAX_KIND_COSTS || size > MAX_KIND_BYTES) throw overLimit("the kinds of the table of inputs cost too much");
}

/** How many calls an axis counts. */
function countedOn([pairs, other, max]) {
  const sizes = pairs.map(([size]) => size);
  const ascend = sizes.every((size, at) => at === 0 || sizes[at - 1] < size);
  if (!ascend || sizes.length === 0 || sizes.length > MAX_SIZES || pairs.some(([, calls]) => calls === 0)) {
    throw wrong("sizes of an axis that do not ascend, or are too many or none");
  }
  const isFull = sizes.length === MAX_SIZES;
  if (other === 0 ? max !== sizes.at(-1) : max <= sizes.at(-1) || !isFull) throw wrong("an axis without its largest size");
  return pairs.reduce((sum, [, calls]) => sum + BigInt(calls), BigInt(other));
}

/**
 * The inputs of a row, as in a record.
 *
 * @throws {TapeError} damaged or invalid
 */
export function treeOf({ structure, leaves, scalars }) {
  return { structure, leaves, scalars: recordedScalars(unpack(scalars)), ranges: [] };
}

/**
 * Compares the documents of a table with the format, and each kind with its structure.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function checkDocuments({ rows, kinds }) {
  for (const row of rows) {
    const ranges = row.ranges.map(([leaf, min, max]) => ({ leaf, min, max }));
    partsOfInputs({ ...treeOf(row), ranges });
  }
  for (const { structure, dtypes, ranks, axes } of kinds) {
    const found = rootOfInputs(structureOf(structure));
    const sizes = ranks.reduce((sum, rank) => sum + rank, 0);
    if (found.leaves !== dtypes.length || found.scalars !== axes.length - sizes) throw wrong("a kind does not fit its structure");
    for (const [at, of] of found.types) {
      if (of !== "int" && axes[sizes + at] !== null) throw wrong("a kind has values of a scalar that is no int");
    }
  }
}

/** Whether the rows have the ranges of their calls that returned: those in `counts`, which are of all calls. */
export function haveRanges({ rows }, counts) {
  return rows.every((row) => {
    const found = counts.get(row.signature)?.ranges ?? new Map();
    const fits = ([leaf, min, max]) => {
      const [low, high] = found.get(leaf) ?? [];
      return low === min && high === max;
    };
    return row.ranges.length === found.size && row.ranges.every(fits);
  });
}

/**
 * Whether the table counts these calls: as many for each of the distinct inputs, with the numbers that a row says,
 * and as many that raised.
 *
 * @param {Map<bigint, object>} counts of the calls on the tape, by the signature of their inputs.
 */
export function isTableOf({ rows, rest }, counts) {
  let others = [...counts.values()].reduce((sum, { calls }) => sum + calls, 0n);
  for (const row of rows) {
    const found = counts.get(row.signature);
    if (row.calls !== (found?.calls ?? 0n)) return false;
    others -= row.calls;
    if (found !== undefined && !isRowOf(row, found)) return false;
  }
  return others === rest;
}

function isRowOf({ seen, calls, raised, first, last, example }, found) {
  const isIn = first <= found.first && found.last <= last && example === found.first;
  const dropped = seen - calls;
  const isAll = dropped > 0n || (first === found.first && last === found.last);
  return isIn && isAll && found.raised <= raised && raised <= found.raised + dropped;
}
