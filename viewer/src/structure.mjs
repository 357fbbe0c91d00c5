// The structure of a tree: its nodes (FORMAT.md, section 6). On a tape they are of seven kinds, with Python's word
// as a hint; here `kind` of a node is that word.

import { Float, SurrogateText, characters, fieldOf, isInt, isMap } from "./documents.mjs";
import { invalid } from "./errors.mjs";
import {
  anyText, array, bool, int, oneOf, optional, record, scalar, text, typeName, withDefault,
} from "./fields.mjs";
import {
  MAX_AUTOCASTS, MAX_KEY, MAX_KEY_PARTS, MAX_LEAVES, MAX_NODES, MAX_PATHS, MAX_TORCH_NAME,
  MAX_UINT64, MIN_INT64,
} from "./limits.mjs";
import { bytesKey, checkedTree } from "./nesting.mjs";
import { packedSize } from "./packing.mjs";

const index = int(0, MAX_NODES - 1);
const name = anyText();
const type = optional(typeName);
const beside = optional(array(name, MAX_KEY_PARTS));
const SCALARS = ["int", "float", "complex", "str", "bytes"];
const children = array(node);

const isText = (value) => typeof value === "string" || value instanceof SurrogateText;

function key(value) {
  if (!Array.isArray(value)) return keyPart(value);
  if (value.length > MAX_KEY_PARTS) throw invalid(`a key of ${value.length} parts`);
  return value.map(keyPart);
}

function keyPart(value) {
  if (value !== null) scalar(value);
  if ((isText(value) && characters(value) > MAX_KEY) || (value instanceof Uint8Array && value.length > MAX_KEY)) {
    throw invalid("a key that is too long");
  }
  if (isInt(value) && (value < MIN_INT64 || value > MAX_UINT64)) throw invalid("a key of too wide an int");
  return value;
}

/** What a node has, by the word of the page for it. */
const FIELDS = new Map();
const define = (words, fields) => words.forEach((word) => FIELDS.set(word, record(fields)));
define(["tensor", "ndarray"], { leaf: index, beside });
define(SCALARS, { scalar: index, type, beside });
define(["none", "ellipsis"], {});
define(["bool"], { value: bool });
define(["dtype", "device", "layout", "memory_format"], { name });
define(["enum"], { type: typeName, name, value: optional(scalar) });
define(["class"], { type: typeName });
define(["opaque"], {
  type: typeName, reason: name, of: optional(oneOf(...SCALARS)), length: optional(index),
});
define(["list", "tuple", "size", "slice", "range", "set", "frozenset"], { children, type, beside });
define(["dict"], { keys: array(key), children, type, beside, modules: optional(array(index)) });
define(["namedtuple", "dataclass", "object"], { type: typeName, fields: array(name), children, beside });
define(["custom"], { type: typeName, context: node, children });

/** By kind of node the hints of this version, which are the words for such nodes, too. */
const HINTS = new Map([
  ["tensor", ["ndarray"]],
  ["scalar", []],
  ["const", ["ellipsis", "dtype", "device", "layout", "memory_format", "enum", "class"]],
  ["seq", ["list", "set", "frozenset", "size", "slice", "range", "custom"]],
  ["map", []],
  ["record", ["namedtuple", "dataclass"]],
  ["opaque", []],
]);

/** By kind of node the word for one without a hint. */
const PLAIN = { tensor: "tensor", seq: "tuple", map: "dict", record: "object", opaque: "opaque" };

const laterName = text(MAX_TORCH_NAME, 1);

/** The page's word for a node; null for one of a later version. */
function wordOf(value, kind) {
  const hints = HINTS.get(kind);
  if (hints === undefined) return null;
  const hint = fieldOf(value, "py");
  if (hint !== undefined && hints.includes(laterName(hint))) return hint;
  if (kind === "scalar") return oneOf(...SCALARS)(fieldOf(value, "of"));
  if (kind !== "const") return PLAIN[kind];
  if (hint !== undefined) return null;
  return fieldOf(value, "value") === undefined ? "none" : "bool";
}

/** A node and all nodes below it. The document is at most MAX_NESTING deep. */
function node(value) {
  if (!isMap(value)) throw invalid("a node that is no map");
  const kind = laterName(fieldOf(value, "kind"));
  const word = wordOf(value, kind);
  if (word === null) return placeholder(value);
  const made = FIELDS.get(word)(value);
  made.kind = word;
  if ((word === "slice" || word === "range") && made.children.length !== 3) {
    throw invalid(`a ${word} of ${made.children.length} parts`);
  }
  const names = made.keys ?? made.fields;
  if (names !== undefined) checkNames(names, made.children.length);
  for (const at of made.modules ?? []) {
    if (at >= names.length || !isText(names[at])) throw invalid(`key ${at} is no name of a module`);
  }
  return made;
}

/** The kind and the hint of a node, as they stand on a tape, from the word for it. */
export function neutralOf(word) {
  if (SCALARS.includes(word)) return { kind: "scalar", of: word };
  if (word === "none" || word === "bool") return { kind: "const" };
  for (const [kind, hints] of HINTS) {
    if (PLAIN[kind] === word) return { kind };
    if (hints.includes(word)) return { kind, py: word };
  }
  throw new RangeError(`no node is called ${word}`);
}

const named = record({ type });

/** What stands for a node that a later version has. */
const placeholder = (value) => ({
  kind: "opaque", type: named(value).type ?? "builtins:object", reason: "unsupported",
});

function checkNames(names, wanted) {
  if (names.length !== wanted) throw invalid(`${names.length} names for ${wanted} children`);
  const seen = new Set();
  for (const one of names) {
    const same = equalityKey(one);
    if (same !== null) {
      if (seen.has(same)) throw invalid("the same name twice");
      seen.add(same);
    }
  }
}

/** Equal for keys that are equal in Python, where 1, 1.0 and True are one key; null for a NaN, which
 * equals nothing. */
function equalityKey(value) {
  if (Array.isArray(value)) {
    const parts = value.map(equalityKey);
    return parts.includes(null) ? null : `(${parts.map((part) => `${part.length}:${part}`).join()})`;
  }
  if (value === null) return "None";
  if (typeof value === "string") return `s${value}`;
  if (value instanceof SurrogateText) return `w${bytesKey(value.bytes)}`;
  if (value instanceof Uint8Array) return `b${bytesKey(value)}`;
  if (value instanceof Float) return Number.isNaN(value.value) ? null : numberKey(value.value);
  return numberKey(value);
}

function numberKey(value) {
  if (typeof value === "boolean") return `n${Number(value)}`;
  return typeof value === "bigint" || Number.isInteger(value) ? `n${BigInt(value)}` : `n${value}`;
}

function torchName(value) {
  if (!/^[a-z][a-z0-9_]*$/.test(text(MAX_TORCH_NAME)(value))) throw invalid("a name that torch does not have");
  return value;
}

const contextFields = record({
  autocast: withDefault(array(record({ device: torchName, dtype: torchName }), MAX_AUTOCASTS), []),
  grad: withDefault(bool, true),
  inference: withDefault(bool, false),
  default_dtype: withDefault(torchName, "float32"),
  training: withDefault(bool, false),
});

/** What the thread of a call was in. */
function context(value) {
  const found = contextFields(value);
  const devices = new Set(found.autocast.map((one) => one.device));
  if (devices.size !== found.autocast.length) throw invalid("autocast for the same type of device twice");
  return found;
}

const document = record({
  root: node, leaves: int(0, MAX_LEAVES), scalars: int(0, MAX_NODES), context: optional(context),
});

/** Calls `visit(node, isInContext, path length)` for each node, in no order. */
function walk(root, visit) {
  const stack = [[root, false, 0]];
  while (stack.length > 0) {
    const [one, inside, length] = stack.pop();
    visit(one, inside, length);
    const names = one.keys ?? one.fields;
    one.children?.forEach((child, at) => {
      stack.push([child, inside, length + 1 + nameLength(names === undefined ? String(at) : names[at])]);
    });
    if (one.context !== undefined) stack.push([one.context, true, length + ".context".length]);
  }
}

/** How much a name adds to a path: text its characters, another key the bytes of its msgpack. */
const nameLength = (value) => (isText(value) ? characters(value) : packedSize(value));

/**
 * The structure from its document: its `root`, the numbers of `leaves` and `scalars`, in `types` which kind each
 * scalar must have, and in `lengths` which of them are lengths.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function structureOf(bytes) {
  const found = document(checkedTree(bytes, "structure"));
  const types = new Map();
  const lengths = [];
  let paths = 0;
  const refer = (at, kind) => {
    if (at >= found.scalars) throw invalid(`scalar ${at} of ${found.scalars}`);
    if ((types.get(at) ?? kind) !== kind) throw invalid(`scalar ${at} with two types`);
    types.set(at, kind);
  };
  walk(found.root, (one, inside, length) => {
    paths += length;
    for (const other of one.beside ?? []) paths += length + 1 + characters(other);
    if (one.leaf !== undefined) {
      if (one.leaf >= found.leaves) throw invalid(`leaf ${one.leaf} of ${found.leaves}`);
      if (inside) throw invalid("a tensor in the context of a custom node");
    }
    if (one.scalar !== undefined) refer(one.scalar, one.kind);
    if (one.length !== undefined) {
      refer(one.length, "int");
      lengths.push(one.length);
    }
  });
  if (paths > MAX_PATHS) throw invalid(`paths of more than ${MAX_PATHS} characters together`);
  return { ...found, types, lengths };
}
