// The record of a call, and its trees (FORMAT.md, section 5).

import { Float, SurrogateText, isInt } from "./documents.mjs";
import { invalid } from "./errors.mjs";
import {
  anyText, array, bytes, count, expectKnown, features, int, int64, optional, record, text, tuple, typeName, uint64, withDefault,
} from "./fields.mjs";
import { leavesOf } from "./leaves.mjs";
import { MAX_NODES, MAX_RANK, MAX_REFERENCES, MAX_TEXT } from "./limits.mjs";
import { remembering } from "./nesting.mjs";
import { structureOf } from "./structure.mjs";

function recordedScalar(value) {
  if (Array.isArray(value)) {
    if (value.length !== 2 || !value.every((part) => part instanceof Float)) {
      throw invalid("an array among the scalars is no complex number");
    }
  } else if (kindOf(value) === null) {
    throw invalid("a value among the scalars that is none");
  }
  return value;
}

function kindOf(value) {
  if (isInt(value)) return "int";
  if (value instanceof Float) return "float";
  if (typeof value === "string" || value instanceof SurrogateText) return "str";
  if (value instanceof Uint8Array) return "bytes";
  return Array.isArray(value) ? "complex" : null;
}

/** The scalars of a tree. */
export const recordedScalars = array(recordedScalar, MAX_NODES);

const rangeFields = record({ leaf: int(0, MAX_NODES - 1), min: int64, max: int64 });

function range(value) {
  const found = rangeFields(value);
  if (found.min > found.max) throw invalid("a range without an element");
  return found;
}

/** At most one for each leaf. */
function ranges(value) {
  const found = array(range, MAX_NODES)(value);
  if (new Set(found.map(({ leaf }) => leaf)).size < found.length) throw invalid("two ranges of a leaf");
  return found;
}

const tree = record({
  structure: count,
  leaves: count,
  scalars: withDefault(recordedScalars, []),
  ranges: withDefault(ranges, []),
});

const taken = [text(), count, text()];
const whole = tuple(...taken);
const first = tuple(...taken, int(0, MAX_RANK));
const reference = (value) => (value?.length === 4 ? first : whole)(value);

const STEP = 2n ** 20n;

const blobFields = record({
  back: count,
  size: count,
  checksum: int(0, 0xffffffff),
  algorithm: withDefault(count, 0),
  steps: optional(bytes()),
  codec: withDefault(count, 0),
  length: optional(count),
});

/** Where the tensors of a call are. */
function blob(value) {
  const found = blobFields(value);
  const { size, steps, codec, length } = found;
  // A checksum after each MiB but the last one, which may be a part of one.
  const wanted = (BigInt(size > 0 ? size : 1) - 1n) / STEP;
  if (steps !== undefined && BigInt(steps.length) !== 4n * wanted) {
    throw invalid(`steps of ${steps.length} bytes for a blob of ${size}`);
  }
  if ((codec === 0) !== (length === undefined)) throw invalid("a length of a blob that is not compressed, or none of one that is");
  return found;
}

const call = record({
  requires: features,
  duration_ns: optional(count),
  thread: withDefault(uint64, 0),
  inputs: tree,
  outputs: optional(tree),
  outputs_missing: optional(text()),
  error: optional(record({ type: typeName, message: anyText(MAX_TEXT) })),
  blob: optional(blob),
  at: withDefault(array(reference, MAX_REFERENCES), []),
});

/**
 * The record of a call from its document. Structures and leaves of its trees are their bytes, which
 * are not decoded yet.
 *
 * @param {Uint8Array[]} parts what the records of the group share.
 * @throws {TapeError} invalid
 */
export function recordOf(document, parts) {
  expectKnown(document, "the record of a call");
  const found = call(document);
  if (found.outputs !== undefined && found.error !== undefined) throw invalid("outputs of a call that raised");
  if (new Set(found.at.map(([key]) => key)).size < found.at.length) {
    throw invalid("an earlier call has the bytes of a key twice");
  }
  for (const one of [found.inputs, found.outputs]) {
    if (one === undefined) continue;
    for (const name of ["structure", "leaves"]) {
      if (one[name] >= parts.length) throw invalid(`the ${name} of a tree are not part of the group`);
      one[name] = parts[one[name]];
    }
  }
  return found;
}

const knownStructures = remembering(structureOf);
const knownLeaves = remembering(leavesOf);

/**
 * The structure and the leaves of a tree, after a check that they and its scalars fit together.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function partsOf(tree) {
  const structure = knownStructures(tree.structure);
  const leaves = knownLeaves(tree.leaves);
  if (structure.leaves !== leaves.length || structure.scalars !== tree.scalars.length) {
    throw invalid("the structure does not fit its leaves and scalars");
  }
  for (const { leaf } of tree.ranges) {
    if (leaf >= leaves.length) throw invalid("a range of a leaf that the tree does not have");
    if (!leaves[leaf].dtype.includes("int")) throw invalid("a range of a leaf that has no integers");
  }
  for (const [at, kind] of structure.types) {
    if (kindOf(tree.scalars[at]) !== kind) {
      throw invalid(`scalar ${at} is of the kind ${kindOf(tree.scalars[at])}, and should be ${kind}`);
    }
  }
  if (structure.lengths.some((at) => tree.scalars[at] < 0)) throw invalid("a text of a negative length");
  return { structure, leaves };
}

/** The same for inputs, whose root is (args, kwargs). */
export function partsOfInputs(tree) {
  const found = partsOf(tree);
  rootOfInputs(found.structure);
  return found;
}

/** A structure of inputs, after a check of its root. */
export function rootOfInputs(structure) {
  const { kind, type, children } = structure.root;
  const [args, kwargs] = children ?? [];
  const fits = kind === "tuple" && children.length === 2 && args.kind === "tuple" && kwargs.kind === "dict";
  const isPlain = type === undefined && args?.type === undefined && kwargs?.type === undefined;
  if (!fits || !isPlain || kwargs.keys.some((key) => typeof key !== "string" && !(key instanceof SurrogateText))) {
    throw invalid("the inputs are not (args, kwargs)");
  }
  return structure;
}
