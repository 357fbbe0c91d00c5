// The leaves of a tree: the facts of its tensors (FORMAT.md, section 7).

import { invalid, overLimit } from "./errors.mjs";
import {
  anyText, array, bool, int, number, oneOf, optional, record, text, typeName, withDefault,
} from "./fields.mjs";
import { isQuantized } from "./dtypes.mjs";
import { MAX_COUNT, MAX_LEAVES, MAX_LEAVES_OF_KEY, MAX_NAME, MAX_NODES, MAX_RANK, MAX_SHORT, MIN_INT64 } from "./limits.mjs";
import { checkedTree } from "./nesting.mjs";

const size = int(0, MAX_COUNT);

const facts = record({
  dtype: text(MAX_NAME, 1),
  shape: array(size, MAX_RANK),
  key: optional(text(MAX_SHORT, 1)),
  missing: optional(anyText()),
  strides: optional(array(size)),
  expanded: withDefault(array(int(0, MAX_RANK - 1), MAX_RANK), []),
  device: withDefault(text(MAX_NAME), "cpu"),
  layout: withDefault(text(MAX_NAME), "strided"),
  requires_grad: withDefault(bool, false),
  inference: withDefault(bool, false),
  conj: withDefault(bool, false),
  neg: withDefault(bool, false),
  subclass: optional(typeName),
  storage: optional(int(0, MAX_NODES - 1)),
  offset: withDefault(size, 0),
  quantizer: optional(record({
    scheme: oneOf("per_tensor_affine", "per_tensor_symmetric"),
    scale: number,
    zero_point: int(MIN_INT64),
  })),
});

/** How many elements sizes make, each 0 counted as 1; a bigint. */
export const elementsOf = (shape) =>
  shape.reduce((product, one) => product * BigInt(one > 0 ? one : 1), 1n);

function leaf(value) {
  const found = facts(value);
  const { shape, strides, expanded } = found;
  if (elementsOf(shape) > MAX_COUNT) throw invalid("more elements than fit in 63 bits");
  if (strides !== undefined && strides.length !== shape.length) {
    throw invalid(`${strides.length} strides for ${shape.length} sizes`);
  }
  if (expanded.some((axis, at) => axis >= shape.length || (at > 0 && axis <= expanded[at - 1]))) {
    throw invalid(`expanded axes ${expanded.join(", ")} of rank ${shape.length}`);
  }
  if (found.offset && found.storage === undefined) {
    throw invalid("an offset in memory that is shared with no leaf");
  }
  if ((found.key === undefined) === (found.missing === undefined)) {
    throw invalid("not either a key or a reason why the value is missing");
  }
  if (found.key === undefined && found.quantizer !== undefined) {
    throw invalid("a quantizer without the elements that it follows from");
  }
  if (found.key !== undefined && found.quantizer === undefined && isQuantized(found.dtype)) {
    throw invalid("a quantized tensor without a quantizer");
  }
  if (found.layout === "nested" && (shape.length > 0 || found.key !== undefined)) {
    throw invalid("a nested tensor with one shape, or with bytes");
  }
  return found;
}

/**
 * The leaves from their document.
 *
 * @throws {TapeError} damaged, invalid or limit
 */
export function leavesOf(bytes) {
  const found = array(leaf, MAX_LEAVES)(checkedTree(bytes, "leaves"));
  const sharing = new Map();
  for (const { key } of found) {
    const count = (sharing.get(key) ?? 0) + 1;
    if (key !== undefined && count > MAX_LEAVES_OF_KEY) throw overLimit(`more than ${MAX_LEAVES_OF_KEY} leaves share a key`);
    sharing.set(key, count);
  }
  return found;
}
