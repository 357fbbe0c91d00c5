// The list of the calls: sorted and filtered. It holds a number per call, and no text.

import { NOT_NUMBERED } from "./columns.mjs";
import { TapeError } from "./errors.mjs";

export const SORTS = ["number", "time", "duration", "bytes", "inputs", "outcome"];
const MOST_WORDS = 8;
const RANGE = /^(\d{1,19})(?:\.\.(\d{1,19})?)?$/;

/** Whether calls can be sorted, or filtered, by what the index alone says. */
export const needsRecords = (sort, filter) =>
  sort !== "number" || wordsOf(filter).some((word) => !RANGE.test(word));

const wordsOf = (filter) => filter.toLowerCase().split(/\s+/).filter((word) => word).slice(0, MOST_WORDS);

/**
 * The positions of the calls that match all words of a filter, sorted.
 *
 * A word is a number or a range of numbers (`7`, `10..99`), `raised` or `returned`, or a part of the
 * text of the inputs.
 *
 * @param {Uint32Array} order the positions by number.
 * @param {string[]} labels of the distinct inputs.
 * @returns {{positions: Uint32Array, unknown: number}} `unknown` calls have too many different
 *   inputs to be searched.
 */
export function listed({ columns, order, labels, sort, isDescending, filter }) {
  if (!SORTS.includes(sort)) throw new TapeError("usage", "there is no such column");
  const { positions, unknown } = filtered(columns, order, labels, wordsOf(filter));
  const sorted = sort === "number" ? positions : positions.sort(comparison(columns, labels, sort));
  return { positions: isDescending ? sorted.reverse() : sorted, unknown };
}

function filtered(columns, order, labels, words) {
  if (words.length === 0) return { positions: order.slice(), unknown: 0 };
  const tests = words.map((word) => testOf(columns, labels, word));
  let unknown = 0;
  const positions = order.filter((position) => {
    const answers = tests.map((test) => test(position));
    if (answers.includes(false)) return false;
    if (answers.includes(null)) unknown += 1;
    return !answers.includes(null);
  });
  return { positions, unknown };
}

function testOf(columns, labels, word) {
  const range = RANGE.exec(word);
  if (range !== null) {
    const low = BigInt(range[1]);
    const high = word.endsWith("..") ? 2n ** 64n : BigInt(range[2] ?? range[1]);
    return (position) => columns.numbers[position] >= low && columns.numbers[position] <= high;
  }
  if (word === "raised") return (position) => columns.raised[position] === 1;
  if (word === "returned") return (position) => columns.raised[position] === 0;
  const matches = labels.map((label) => label.toLowerCase().includes(word));
  return (position) => {
    const inputs = columns.inputs[position];
    return inputs === NOT_NUMBERED ? null : matches[inputs];
  };
}

function comparison(columns, labels, sort) {
  const values = { time: columns.times, duration: columns.durations, bytes: columns.blobs, outcome: columns.raised }[sort]
    ?? ranks(columns, labels);
  const { numbers } = columns;
  return (one, other) => {
    const [a, b] = [values[one], values[other]];
    if (a !== b && !(Number.isNaN(a) && Number.isNaN(b))) {
      return Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : a - b;
    }
    return numbers[one] < numbers[other] ? -1 : 1;
  };
}

/** For each call the place of its inputs in the alphabet. */
function ranks(columns, labels) {
  const places = labels.map((_, number) => number).sort((one, other) =>
    labels[one] < labels[other] ? -1 : labels[one] > labels[other] ? 1 : 0);
  const rank = new Uint32Array(labels.length);
  places.forEach((number, place) => (rank[number] = place));
  return Float64Array.from({ length: columns.length }, (_, position) =>
    columns.inputs[position] === NOT_NUMBERED ? Infinity : rank[columns.inputs[position]]);
}
