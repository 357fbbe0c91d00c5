// Which sizes the dimensions of the arguments had, over the calls.
//
// Calls whose inputs have the same structure, dtypes and ranks are one group. In a group a dimension
// of a tensor, or an int, is a column: it has one value per call.

import { NOT_NUMBERED } from "./columns.mjs";
import { plainText, scalarText } from "./texts.mjs";
import { TapeError } from "./errors.mjs";
import { argumentsOf, labelOf } from "./descriptions.mjs";
import { layoutName } from "./memory_layout.mjs";
import { bytesKey } from "./nesting.mjs";
import { partsOfInputs } from "./records.mjs";

const MOST_VALUES = 10_000;
const MOST_COLUMNS = 20_000;

/** The paths of the leaves and ints of inputs: each with how to read its values. */
function columnsOf(side, nameAt) {
  const columns = [];
  const seen = new Set();
  const visit = (node, path) => {
    if (columns.length > MOST_COLUMNS) return;
    if (node.leaf !== undefined && !seen.has(`leaf ${node.leaf}`)) {
      seen.add(`leaf ${node.leaf}`);
      const { dtype, shape } = side.leaves[node.leaf];
      shape.forEach((_, axis) => columns.push({ path, dtype, axis, leaf: node.leaf }));
    } else if (node.kind === "int" && !seen.has(`scalar ${node.scalar}`)) {
      seen.add(`scalar ${node.scalar}`);
      columns.push({ path, dtype: "int", axis: null, scalar: node.scalar });
    }
    const given = node.keys ?? node.fields;
    node.children?.forEach((child, at) => {
      const key = given === undefined ? String(at) : given[at];
      visit(child, `${path}.${typeof plainText(key) === "string" ? plainText(key) : scalarText(key)}`);
    });
  };
  for (const [name, node] of argumentsOf(side.structure, nameAt)) visit(node, name);
  return columns;
}

const valueIn = (column, side) =>
  column.axis === null ? side.tree.scalars[column.scalar] : side.leaves[column.leaf].shape[column.axis];

const shapeKey = (side) =>
  `${bytesKey(side.tree.structure)}|${side.leaves.map((leaf) => `${leaf.dtype}${leaf.shape.length}`).join()}`;

export class Dimensions {
  /**
   * @param {Array} entries distinct inputs: `tree`, `calls`, `first`.
   * @param {function(number): string} nameAt gives the names of positional arguments.
   * @param {bigint} rest how many calls are not among them.
   */
  constructor(entries, nameAt, rest) {
    this.nameAt = nameAt;
    this.rest = rest;
    this.groups = [];
    this.groupOf = new Int32Array(entries.length).fill(-1); // by number of the inputs
    this.entries = entries;
    this.broken = 0; // calls whose inputs break the format
    this.errors = []; // pairs of an entry and what is wrong with it
    const known = new Map();
    entries.forEach((entry, number) => entry.calls > 0n && this.add(entry, number, known));
  }

  add(entry, number, known) {
    const side = this.sideOf(number, (error) => this.errors.push([entry, error]));
    if (side === null) {
      this.broken += Number(entry.calls);
      return;
    }
    const key = shapeKey(side);
    let group = known.get(key);
    if (group === undefined) {
      const columns = columnsOf(side, this.nameAt).map((column) => ({ ...column, values: new Map(), other: 0 }));
      group = { number: this.groups.length, label: labelOf(side, this.nameAt), calls: 0, columns, layouts: side.leaves.map(() => new Map()) };
      known.set(key, group);
      this.groups.push(group);
    }
    this.groupOf[number] = group.number;
    const calls = Number(entry.calls);
    group.calls += calls;
    side.leaves.forEach((leaf, at) => {
      const name = layoutName(leaf);
      group.layouts[at].set(name, (group.layouts[at].get(name) ?? 0) + calls);
    });
    for (const column of group.columns) {
      const value = valueIn(column, side);
      const before = column.values.get(value);
      if (before === undefined && column.values.size >= MOST_VALUES) column.other += calls;
      else column.values.set(value, (before ?? 0) + calls);
    }
  }

  /** The decoded inputs of a number; null if they break the format, which `onError` is told. */
  sideOf(number, onError = () => undefined) {
    const { tree } = this.entries[number];
    try {
      return { tree, ...partsOfInputs(tree) };
    } catch (error) {
      if (!(error instanceof TapeError)) throw error;
      onError(error);
      return null;
    }
  }

  /** A row for each column of each group. */
  rows() {
    return this.groups.flatMap((group) =>
      group.columns.map((column, at) => {
        const values = [...column.values.keys()];
        const [low, high] = extremes(values);
        return {
          group: group.number, column: at, path: column.path, dtype: column.dtype, axis: column.axis,
          calls: group.calls, min: String(low), max: String(high),
          distinct: values.length + (column.other > 0 ? 1 : 0), isMore: column.other > 0,
        };
      }));
  }

  /** How many calls had which layout in memory of the tensor of a column, the most frequent first. */
  layouts(group, column) {
    const { columns, layouts } = this.groups[group];
    const { leaf } = columns[column];
    return leaf === undefined ? [] : [...layouts[leaf]].sort(([, one], [, other]) => other - one);
  }

  /** How many calls had each value of a column, the most frequent first. */
  histogram(group, column) {
    const found = this.groups[group].columns[column];
    const values = [...found.values].sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
    return { values: values.map(([value, calls]) => [String(value), calls]), other: found.other };
  }

  /**
   * The values of a column over the calls, in at most `bins` bins: each with the first and the last
   * call, and the smallest and the largest value. Null if none of the calls is on the tape.
   *
   * @param {Columns} columns the calls, after a scan.
   */
  series(group, column, columns, order, bins) {
    const found = this.groups[group].columns[column];
    const byInputs = new Map();
    const member = [];
    for (const position of order) {
      const inputs = columns.inputs[position];
      if (inputs !== NOT_NUMBERED && this.groupOf[inputs] === group) member.push(position);
    }
    if (member.length === 0) return null;
    const size = Math.max(1, Math.ceil(member.length / bins));
    const series = [];
    for (let at = 0; at < member.length; at += size) {
      const part = member.slice(at, at + size);
      const values = part.map((position) => {
        const inputs = columns.inputs[position];
        if (!byInputs.has(inputs)) byInputs.set(inputs, Number(valueIn(found, this.sideOf(inputs))));
        return byInputs.get(inputs);
      });
      const [min, max] = extremes(values);
      series.push({ first: Number(columns.number(part[0])), last: Number(columns.number(part.at(-1))), min, max });
    }
    return series;
  }
}

function extremes(values) {
  let [low, high] = [values[0], values[0]];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
