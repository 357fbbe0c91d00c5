// The names of arguments are those of `calltape variants`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { argumentsOf, inputsTree, outputsTree, positionalNames } from "../../viewer/src/descriptions.mjs";

const tensor = (leaf) => ({ kind: "tensor", leaf });
const list = (...children) => ({ kind: "tuple", children });
const leaf = { dtype: "int64", shape: [2], strides: undefined, expanded: [], device: "cpu", layout: "strided" };

function side(root, count) {
  return { structure: { root }, leaves: Array(count).fill(leaf), tree: { scalars: [], ranges: [] } };
}

const target = {
  signature: [
    { name: "ids", kind: "POSITIONAL_OR_KEYWORD" }, { name: "more", kind: "VAR_POSITIONAL" },
    { name: "past", kind: "KEYWORD_ONLY" },
  ],
};

function names(node) {
  return [node.name, ...(node.children ?? []).flatMap(names)];
}

test("a place is the parameter, then keys and positions", () => {
  const args = list(tensor(0), tensor(1), list(tensor(2)));
  const kwargs = { kind: "dict", keys: ["past"], children: [list(list(tensor(3), tensor(4)))] };
  const found = inputsTree(side(list(args, kwargs), 5), positionalNames(target), new Map());
  assert.deepEqual(names(found), [
    "inputs", "ids", "more.0", "more.1", "more.1.0", "past", "past.0", "past.0.0", "past.0.1",
  ]);
});

test("without a signature, and beyond one, an argument has its position", () => {
  const inputs = { root: list(list(tensor(0), tensor(1)), { kind: "dict", keys: [], children: [] }) };
  const named = (known) => argumentsOf(inputs, positionalNames(known)).map(([name]) => name);
  assert.deepEqual(named(null), ["args.0", "args.1"]);
  assert.deepEqual(named({ signature: target.signature.slice(0, 1) }), ["ids", "arg_1"]);
});

test("outputs begin with outputs, and a long name has its end only", () => {
  const root = { kind: "dict", keys: ["x".repeat(300)], children: [list(tensor(0))] };
  const [first, key, inner] = names(outputsTree(side(root, 1), new Map()));
  assert.equal(first, "outputs");
  assert.ok(key.startsWith("…x") && key.length === 200, key);
  assert.ok(inner.endsWith("x.0") && inner.length === 200, inner);
});
