// Trees of a call as plain data for the page: a node has `name` (its place from the argument on), `text`,
// `kind`, and if there are some `type`, `children`, `leaf`, `facts` and `beside`.

import { layoutName } from "./memory_layout.mjs";
import { hexText, leafText, plainText, scalarText } from "./texts.mjs";

const MOST_IN_LABEL = 160;
const MOST_IN_NAME = 200;

/** Gives the name of a positional argument, as `calltape variants` has it: `ids`; one of `*args` is `args.0`. */
export function positionalNames(target) {
  const parameters = target?.signature ?? [{ name: "args", kind: "VAR_POSITIONAL" }];
  const names = parameters.filter((one) => one.kind.startsWith("POSITIONAL")).map((one) => one.name);
  const rest = parameters.find((one) => one.kind === "VAR_POSITIONAL")?.name;
  return (at) => names[at] ?? (rest === undefined ? `arg_${at}` : `${rest}.${at - names.length}`);
}

/** The arguments of a call: pairs of a name and a node of the structure. `nameAt` is of `positionalNames`. */
export function argumentsOf(structure, nameAt) {
  const [args, kwargs] = structure.root.children;
  return [
    ...args.children.map((node, at) => [nameAt(at), node]),
    ...kwargs.children.map((node, at) => [plainText(kwargs.keys[at]), node]),
  ];
}

const keyText = (key) => (typeof key === "string" ? key : scalarText(key));

/** Names of the children of a node, in their order. */
function namesOf(node) {
  if (node.keys !== undefined) return node.keys.map(keyText);
  if (node.fields !== undefined) return node.fields.map(plainText);
  if (node.kind === "slice" || node.kind === "range") return ["start", "stop", "step"];
  return node.children.map((_, at) => String(at));
}

/** What a node is, in a few words, without its children. */
export function nodeText(node, side, most) {
  const { leaves, tree } = side;
  switch (node.kind) {
    case "tensor":
      return leafText(leaves[node.leaf]);
    case "ndarray":
      return `ndarray ${leafText(leaves[node.leaf])}`;
    case "none":
      return "None";
    case "ellipsis":
      return "...";
    case "bool":
      return node.value ? "True" : "False";
    case "dtype": case "layout": case "memory_format":
      return `torch.${plainText(node.name)}`;
    case "device":
      return `device ${plainText(node.name)}`;
    case "enum":
      return `${node.type}.${plainText(node.name)}`;
    case "class":
      return `class ${node.type}`;
    case "opaque":
      return `not stored: ${plainText(node.reason)}${node.length === undefined ? "" : `, length ${tree.scalars[node.length]}`}`;
    default:
      if (node.scalar !== undefined) return scalarText(tree.scalars[node.scalar], most);
      return node.children.length === 1 ? `${node.kind} of 1` : `${node.kind} of ${node.children.length}`;
  }
}

/** The inputs of a call in one line: `input_ids: int64[1, 8], use_cache: True`. */
export function labelOf(side, nameAt) {
  const parts = [];
  let length = 0;
  for (const [name, node] of argumentsOf(side.structure, nameAt)) {
    const type = node.type !== undefined && node.children !== undefined ? `${node.type.split(":")[1]} ` : "";
    const part = `${name}: ${type}${nodeText(node, side, 40)}`;
    parts.push(part);
    length += part.length;
    if (length > MOST_IN_LABEL) return `${parts.join(", ").slice(0, MOST_IN_LABEL)}…`;
  }
  return parts.join(", ");
}

function factsOf(leaf, elsewhere) {
  const facts = [];
  const add = (name, value) => facts.push([name, String(value)]);
  if (leaf.device !== "cpu") add("device", leaf.device);
  if (leaf.layout !== "strided") add("layout", leaf.layout);
  if (leaf.strides !== undefined) add("strides", leaf.strides.join(", "));
  if (leaf.strides !== undefined || leaf.expanded.length > 0) add("layout in memory", layoutName(leaf));
  if (leaf.expanded.length > 0) add("expanded axes", leaf.expanded.join(", "));
  for (const flag of ["requires_grad", "inference", "conj", "neg"]) if (leaf[flag]) add(flag, "true");
  if (leaf.subclass !== undefined) add("subclass", leaf.subclass);
  if (leaf.storage !== undefined) add("shares memory", leaf.storage);
  if (leaf.quantizer !== undefined) {
    const { scheme, scale, zero_point } = leaf.quantizer;
    add("quantizer", `${scheme}, scale ${scalarText(scale)}, zero point ${zero_point}`);
  }
  const holder = elsewhere.get(leaf.key);
  if (holder !== undefined) add("value as in", `call ${holder.call}`);
  if (leaf.missing !== undefined) add("value not on the tape", plainText(leaf.missing));
  return facts;
}

/** A name, of which a long one has only its end: keys may be long, and nested. */
const ending = (name) => (name.length <= MOST_IN_NAME ? name : `…${name.slice(1 - MOST_IN_NAME)}`);

function described(name, node, side, elsewhere) {
  const made = { name, kind: node.kind, text: nodeText(node, side) };
  if (node.type !== undefined) made.type = node.type;
  if (node.beside?.length > 0) made.beside = node.beside.map(plainText);
  if (node.value !== undefined && node.kind === "enum") made.text += ` = ${scalarText(node.value)}`;
  if (node.leaf !== undefined) {
    const leaf = side.leaves[node.leaf];
    const range = side.tree.ranges.find((one) => one.leaf === node.leaf);
    made.leaf = node.leaf;
    made.hasValue = leaf.key !== undefined;
    made.facts = factsOf(leaf, elsewhere);
    if (range !== undefined) made.facts.push(["elements", `${range.min} to ${range.max}`]);
  }
  if (node.children !== undefined) {
    const names = namesOf(node);
    const below = (own, child) => described(ending(`${name}.${own}`), child, side, elsewhere);
    made.children = node.children.map((child, at) => below(names[at], child));
    if (node.context !== undefined) made.children.unshift(below("context", node.context));
  }
  return made;
}

/** The tree of the arguments: a node whose children are the arguments. `elsewhere` has the calls of tensors
 * that stand there, by key. */
export function inputsTree(side, nameAt, elsewhere) {
  const children = argumentsOf(side.structure, nameAt).map(([name, node]) => described(name, node, side, elsewhere));
  return { name: "inputs", kind: "inputs", text: children.length === 1 ? "1 argument" : `${children.length} arguments`, children };
}

export const outputsTree = (side, elsewhere) => described("outputs", side.structure.root, side, elsewhere);

/** Facts of a call: pairs of a name and a text. */
export function callFacts(record, times) {
  const facts = [["began", times.began]];
  if (record.duration_ns !== undefined) facts.push(["took", times.took]);
  facts.push(["thread", String(record.thread)]);
  if (record.outputs_missing !== undefined) facts.push(["outputs not kept", record.outputs_missing]);
  return facts;
}
