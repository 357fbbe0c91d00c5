// In what a summary differs from the trailer and the records of its tape: then it is forged or stale.

import { NOT_NUMBERED } from "./columns.mjs";
import { scalarKey } from "./distinct_inputs.mjs";
import { bytesKey } from "./nesting.mjs";

const SHARED = ["closed_ns", "coverage", "traffic", "dumps", "continues"];

const asText = (value) =>
  JSON.stringify(value, (_, one) =>
    typeof one === "bigint" ? `${one}n` : one instanceof Uint8Array ? bytesKey(one) : one);

/** What is wrong, a text for each difference. */
export function staleReasons(summary, scan) {
  const { trailer, columns, distinct } = scan;
  if (trailer === null) return ["there is no whole trailer after it"];
  const found = SHARED.filter((name) => asText(summary[name]) !== asText(trailer[name]))
    .map((name) => `its ${name} is not that of the trailer`);
  const lost = BigInt(summary.coverage.kept) - BigInt(columns.length);
  const numbers = columns.numbers.subarray(0, columns.length);
  const [low, high] = numbers.reduce(
    ([least, most], one) => [least === null || one < least ? one : least, most === null || one > most ? one : most],
    [null, null],
  );
  const differs = (told, there) => (told === undefined ? null : BigInt(told)) !== there;
  if (lost === 0n && (differs(summary.first_call, low) || differs(summary.last_call, high))) {
    found.push(`its calls are not ${low} to ${high}`);
  }
  if (summary.rows === null) return found;
  if (columns.inputs.subarray(0, columns.length).includes(NOT_NUMBERED)) {
    return [...found, "the records have more distinct inputs than a summary can have"];
  }
  return [...found, ...otherInputs(summary.rows, distinct.entries, lost)];
}

const keyOf = ({ tree, raised }) =>
  `${raised}|${bytesKey(tree.structure)}|${bytesKey(tree.leaves)}|${tree.scalars.map(scalarKey).join()}`;

function otherInputs(rows, entries, lost) {
  const told = new Map(rows.map((row) => [keyOf(row), row]));
  const found = [];
  let missing = 0;
  let other = null;
  let unknown = rows.reduce((sum, row) => sum + row.calls, 0n);
  for (const entry of entries) {
    const row = told.get(keyOf(entry));
    if (row === undefined) {
      missing += 1;
      continue;
    }
    unknown -= row.calls;
    const isCovered = row.calls >= entry.calls && row.first <= entry.first && row.last >= entry.last;
    const isSame = row.calls === entry.calls && row.first === entry.first && row.last === entry.last;
    if (lost > 0n ? !isCovered : !isSame) other ??= entry.first;
  }
  if (unknown > (lost > 0n ? lost : 0n)) found.push(`it has ${unknown} calls with inputs that no record has`);
  if (missing > 0) found.push(`it lacks the inputs of ${missing} records`);
  if (other !== null) found.push(`it counts other calls with the inputs of call ${other}`);
  return found;
}
