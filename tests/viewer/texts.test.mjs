// Numbers of a tape as text.

import assert from "node:assert/strict";
import test from "node:test";

import { elementText } from "../../viewer/src/texts.mjs";
import { rangeText } from "../../viewer/src/values.mjs";

test("a float of eight bits is exact", () => {
  assert.equal(elementText("float8_e8m0fnu", 0.25), "0.25");
  assert.equal(elementText("float8_e8m0fnu", 2 ** -10), "0.0009765625");
  assert.equal(elementText("float8_e4m3fn", 1.875), "1.875");
  assert.equal(elementText("float8_e5m2", -0.4375), "-0.4375");
  assert.equal(elementText("float8_e5m2", 57344), "57344.0");
});

test("a larger float has the digits that tell it from its neighbours", () => {
  assert.equal(elementText("float32", Math.fround(0.1)), "0.1");
  assert.equal(elementText("float16", 0.0999755859375), "0.09998");
});

test("elements are counted in words", () => {
  assert.equal(rangeText(0, 1, 1), "1 element");
  assert.equal(rangeText(0, 8, 8), "8 elements");
  assert.equal(rangeText(240, 240, 600), "240 to 479 of 600 elements");
  assert.equal(rangeText(240, 1, 241), "240 of 241 elements");
});
