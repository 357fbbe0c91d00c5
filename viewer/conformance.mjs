// The reader of the viewer in the protocol of the conformance suite (fixtures/README.md):
// `node viewer/conformance.mjs TAPE...` prints what is on a tape as JSON, a line for each.

import { open } from "node:fs/promises";
import process from "node:process";

import { Float, SurrogateText, unpack } from "./src/documents.mjs";
import { elementsIn } from "./src/dtypes.mjs";
import { TapeError } from "./src/errors.mjs";
import { checkDocuments, tableOf } from "./src/inputs_table.mjs";
import { leavesOf } from "./src/leaves.mjs";
import { neutralOf } from "./src/structure.mjs";
import { openTape } from "./src/tape.mjs";

class DiskFile {
  static async open(path) {
    const handle = await open(path);
    return new DiskFile(handle, (await handle.stat()).size);
  }

  constructor(handle, size) {
    this.handle = handle;
    this.size = size;
  }

  async read(offset, length) {
    const bytes = new Uint8Array(length);
    let done = 0;
    while (done < length) {
      const { bytesRead } = await this.handle.read(bytes, done, length - done, offset + done);
      if (bytesRead === 0) break;
      done += bytesRead;
    }
    return bytes.subarray(0, done);
  }
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

function text(value) {
  return value instanceof SurrogateText ? { wtf8: hex(value.bytes) } : value;
}

function float(value) {
  if (Number.isNaN(value)) return "nan";
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return hex(new Uint8Array(view.buffer));
}

const floatOf = (value) => float(value instanceof Float ? value.value : Number(value));

function scalar(value) {
  if (value instanceof Float) return float(value.value);
  if (value instanceof Uint8Array) return hex(value);
  if (Array.isArray(value)) return value.map((part) => float(part.value));
  return typeof value === "string" || value instanceof SurrogateText ? text(value) : String(value);
}

/** A value that stands alone, in the form of a node. */
function bare(value) {
  if (value === null || value === undefined) return { kind: "const" };
  if (typeof value === "boolean") return { kind: "const", value };
  if (Array.isArray(value)) return { kind: "seq", children: value.map(bare) };
  const of =
    value instanceof Float ? "float" : value instanceof Uint8Array ? "bytes"
      : typeof value === "string" || value instanceof SurrogateText ? "str" : "int";
  return { kind: "scalar", of, value: scalar(value) };
}

function nodeForm(node, scalars) {
  const made = neutralOf(node.kind);
  for (const name of ["type", "name", "reason", "of"]) {
    if (node[name] !== undefined) made[name] = text(node[name]);
  }
  if (node.leaf !== undefined) made.leaf = String(node.leaf);
  if (node.scalar !== undefined) made.value = scalar(scalars[node.scalar]);
  if (node.length !== undefined) made.length = String(scalars[node.length]);
  if (node.value !== undefined && node.value !== null) {
    made.value = node.kind === "bool" ? node.value : bare(node.value);
  }
  if (node.context !== undefined) made.context = nodeForm(node.context, scalars);
  if (node.beside?.length > 0) made.beside = node.beside.map(text);
  const children = node.children?.map((child) => nodeForm(child, scalars));
  if (node.keys !== undefined) made.entries = node.keys.map((key, at) => [bare(key), children[at]]);
  else if (node.fields !== undefined) made.fields = node.fields.map((name, at) => [text(name), children[at]]);
  else if (children !== undefined) made.children = children;
  return made;
}

/** The default dtype is said only where it is another than torch's own, and training mode where it was on. */
function contextForm({ default_dtype, training, ...rest }) {
  const made = default_dtype === "float32" ? rest : { ...rest, default_dtype };
  return training ? { ...made, training } : made;
}

function leafForm(leaf) {
  const made = { dtype: leaf.dtype, shape: leaf.shape.map(String) };
  if (leaf.strides !== undefined) made.strides = leaf.strides.map(String);
  if (leaf.expanded.length > 0) made.expanded = leaf.expanded.map(String);
  if (leaf.device !== "cpu") made.device = leaf.device;
  if (leaf.layout !== "strided") made.layout = leaf.layout;
  for (const flag of ["requires_grad", "inference", "conj", "neg"]) if (leaf[flag]) made[flag] = true;
  if (leaf.subclass !== undefined) made.subclass = leaf.subclass;
  if (leaf.storage !== undefined) made.storage = String(leaf.storage);
  if (leaf.offset) made.offset = String(leaf.offset);
  if (leaf.missing !== undefined) made.missing = text(leaf.missing);
  if (leaf.quantizer !== undefined) {
    const { scheme, scale, zero_point } = leaf.quantizer;
    made.quantizer = { scheme, scale: floatOf(scale), zero_point: String(zero_point) };
  }
  return made;
}

function valueForm(leaf, bytes) {
  const { kind, values } = elementsIn(leaf.dtype, bytes);
  const form = { bool: (one) => one, int: String, float, complex: (parts) => parts.map(float), bits: hex };
  return { bytes: hex(bytes), elements: values.map(form[kind]) };
}

async function valuesOf(call, side, kinds) {
  const found = [];
  for (const leaf of side.leaves) {
    try {
      found.push(leaf.key === undefined ? {} : valueForm(leaf, await call.bytesOf(leaf)));
    } catch (error) {
      if (kindOf(error) !== "unsupported") throw error;
      kinds.add("unsupported"); // it costs this tensor only
      found.push({ unsupported: true });
    }
  }
  return found;
}

function treeForm(side, values) {
  const made = {
    root: nodeForm(side.structure.root, side.tree.scalars),
    leaves: side.leaves.map((leaf, at) => ({ ...leafForm(leaf), ...values?.[at] })),
  };
  if (side.structure.context !== undefined) made.context = contextForm(side.structure.context);
  if (side.tree.ranges.length > 0) {
    made.ranges = side.tree.ranges.map(({ leaf, min, max }) => ({
      leaf: String(leaf), min: String(min), max: String(max),
    }));
  }
  return made;
}

async function callForm(call, kinds) {
  const { record } = call;
  const made = { number: String(record.call), values: "ok" };
  for (const name of ["time_ns", "duration_ns", "thread"]) {
    if (record[name] !== undefined) made[name] = String(record[name]);
  }
  if (record.error !== undefined) made.error = { type: record.error.type, message: text(record.error.message) };
  if (record.outputs_missing !== undefined) made.outputs_missing = record.outputs_missing;
  const sides = [["inputs", call.inputs], ["outputs", call.outputs]].filter(([, side]) => side !== null);
  try {
    await checkBlob(call, kinds, sides.some(([, { leaves }]) => leaves.some(({ key }) => key !== undefined)));
    const values = [];
    for (const [, side] of sides) values.push(await valuesOf(call, side, kinds));
    sides.forEach(([name, side], at) => (made[name] = treeForm(side, values[at])));
  } catch (error) {
    made.values = kindOf(error);
    kinds.add(made.values);
    for (const [name, side] of sides) made[name] = treeForm(side);
  }
  return made;
}

/** Compares the blob of a call with its checksums. A broken one costs all its values, if it has any; one that only a later version knows those in it. */
async function checkBlob(call, kinds, hasValues) {
  try {
    await call.check();
  } catch (error) {
    kinds.add(kindOf(error));
    if (hasValues && error.kind !== "unsupported") throw error;
  }
}

function kindOf(error) {
  if (!(error instanceof TapeError)) throw error;
  return error.kind;
}

function targetForm({ type, method, via, signature, module }) {
  const made = { type: text(type), method: text(method), via };
  if (module !== undefined) made.module = text(module);
  if (signature === undefined) return made;
  made.signature = signature.map((one) => {
    const parameter = { name: one.name, kind: one.kind };
    if (one.has_default) parameter.default = one.default_missing ? { kind: "unknown" } : bare(one.default);
    return parameter;
  });
  return made;
}

function stepForm({ verb, tool, version, tape, options, sources }) {
  return {
    verb, tool, version, tape: hex(tape), options,
    sources: sources.map((source) => {
      const made = { tape: hex(source.tape), files: source.files };
      for (const name of ["other_files", "calls", "first"]) made[name] = String(source[name]);
      if (source.left_out !== undefined) made.left_out = String(source.left_out);
      return made;
    }),
  };
}

function axisForm(axis) {
  if (axis === null) return {};
  const [sizes, other, max] = axis;
  return { sizes: sizes.map((pair) => pair.map(String)), other: String(other), max: String(max) };
}

/** The table of counted inputs; undefined if the end has none that can be read. */
async function tableForm(end) {
  let table;
  try {
    table = await tableOf(end);
    if (table !== null) checkDocuments(table);
  } catch (error) {
    kindOf(error); // it is among the corruption
    return undefined;
  }
  if (!table) return undefined;
  const made = {
    rows: table.rows.map((row) => ({
      calls: [row.seen, row.calls, row.raised].map(String),
      first: String(row.first), last: String(row.last),
      ...(row.calls > 0n ? { example: String(row.example) } : {}),
      leaves: leavesOf(row.leaves).map(leafForm),
      scalars: unpack(row.scalars).map(bare),
      ranges: [...row.ranges].sort(([one], [other]) => one - other).map((range) => range.map(String)),
    })),
    kinds: table.kinds.map(({ calls, dtypes, ranks, axes }) => ({
      calls: calls.map(String), dtypes, ranks: ranks.map(String), axes: axes.map(axisForm),
    })),
    other: table.other.map(String),
  };
  for (const name of ["rows_below", "kinds_below"]) if (table[name] !== undefined) made[name] = String(table[name]);
  return made;
}

function coverageForm({ seen, kept, dropped }) {
  const counts = Object.fromEntries(dropped.map(([reason, calls]) => [reason, String(calls)]));
  return { seen: String(seen), kept: String(kept), dropped: counts };
}

/** What is on a tape, or how it is refused. */
async function documentOf(source) {
  let tape;
  try {
    tape = await openTape(source);
  } catch (error) {
    return { refused: kindOf(error) };
  }
  await tape.scan();
  const { manifest } = tape;
  const made = { version: String(manifest.version), tape: hex(manifest.tape) };
  if (manifest.target !== undefined) made.target = targetForm(manifest.target);
  if (manifest.history !== undefined) made.history = manifest.history.map(stepForm);
  made.sealed = tape.isSealed;
  if (tape.isSealed) {
    made.coverage = coverageForm(tape.end.coverage);
    if (tape.end.elsewhere) made.elsewhere = true;
    made.table = await tableForm(tape.end);
  } else if (tape.interim !== null) {
    const { next_call, coverage } = tape.interim;
    made.counts = { next_call: String(next_call), ...coverageForm(coverage), counted_ns: String(coverage.counted_ns) };
  }
  const { deleted } = tape.end ?? tape.interim ?? {};
  if (deleted !== undefined) made.deleted = deleted.map((run) => run.map(String));
  const kinds = new Set(Array.from(tape.corruption.values(), (error) => error.kind));
  made.calls = [];
  for (const position of tape.columns.order()) {
    let call;
    try {
      call = await tape.call(position);
    } catch (error) {
      kinds.add(kindOf(error));
      continue;
    }
    made.calls.push(await callForm(call, kinds));
  }
  made.damage = [...kinds].sort();
  return made;
}

const paths = process.argv.slice(2);
if (paths.length === 0) {
  process.stderr.write("usage: node conformance.mjs TAPE...\n");
  process.exitCode = 2;
}
for (const path of paths) {
  const source = await DiskFile.open(path);
  process.stdout.write(`${JSON.stringify(await documentOf(source))}\n`);
  await source.handle.close();
}
