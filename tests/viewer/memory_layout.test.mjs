// Layouts in memory have the names that the analyzer gives them.

import assert from "node:assert/strict";
import test from "node:test";

import { layoutName, layoutsInWords } from "../../viewer/src/memory_layout.mjs";

const leaf = (shape, strides, expanded = []) => ({ layout: "strided", shape, strides, expanded });

test("layouts have names", () => {
  assert.equal(layoutName(leaf([3, 4])), "contiguous");
  assert.equal(layoutName(leaf([3, 4], [1, 3])), "transposed (stride order 1,0)");
  assert.equal(layoutName(leaf([2, 3, 5, 6], [90, 1, 18, 3])), "channels_last");
  assert.equal(layoutName(leaf([5, 4], [8, 1])), "with gaps");
  assert.equal(layoutName(leaf([6, 4], [1, 1])), "overlapping");
  assert.equal(layoutName(leaf([2, 5, 3], undefined, [1])), "expanded (axis 1)");
  assert.equal(layoutName(leaf([2n ** 40n, 2n ** 20n], [1n, 2n ** 40n])), "transposed (stride order 1,0)");
  assert.equal(layoutName({ ...leaf([3, 4]), layout: "sparse_coo" }), "sparse_coo");
});

test("layouts are told where they are not contiguous in every call", () => {
  assert.equal(layoutsInWords([]), "");
  assert.equal(layoutsInWords([["contiguous", 7]]), "");
  assert.equal(layoutsInWords([["channels_last", 1]]), "channels_last in the only call");
  assert.equal(layoutsInWords([["channels_last", 2]]), "channels_last in all calls");
  assert.equal(layoutsInWords([["contiguous", 3], ["with gaps", 1]]), "contiguous in 3 calls, with gaps in 1");
});
