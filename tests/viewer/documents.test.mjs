// What the vendored decoder is too lenient for, and this reader is not.

import assert from "node:assert/strict";
import test from "node:test";

import { Float, SurrogateText, characters, fieldOf, isMap, openEnvelope, unpack } from "../../viewer/src/documents.mjs";
import { record, count, optional, withDefault, text } from "../../viewer/src/fields.mjs";

const bytes = (hex) => Uint8Array.from(hex.replaceAll(" ", "").match(/../g) ?? [], (pair) => parseInt(pair, 16));
const refuses = (hex, kind = "damaged") => assert.throws(() => unpack(bytes(hex)), { kind });

test("an int is no float", () => {
  assert.equal(unpack(bytes("02")), 2);
  assert.deepEqual(unpack(bytes("cb 4000000000000000")), new Float(2));
  assert.deepEqual(unpack(bytes("ca 40000000")), new Float(2));
});

test("ints are exact at every width", () => {
  assert.equal(unpack(bytes("cf 001fffffffffffff")), Number.MAX_SAFE_INTEGER);
  assert.equal(unpack(bytes("cf ffffffffffffffff")), 2n ** 64n - 1n);
  assert.equal(unpack(bytes("d3 8000000000000000")), -(2n ** 63n));
  assert.equal(unpack(bytes("c7 09 01 01 0000000000000000")), 2n ** 64n);
  assert.equal(unpack(bytes("d4 01 ff")), -1);
});

test("text is UTF-8, or has surrogates and says so", () => {
  assert.equal(unpack(bytes("a3 e282ac")), "€");
  for (const hex of ["a1 ff", "a2 c080", "a3 eda080", "a2 e282", "d5 02 ffff", "d6 02 eda08020".replace("20", "ff")]) refuses(hex);
  const found = unpack(bytes("d6 02 eda080 78"));
  assert.ok(found instanceof SurrogateText);
  assert.equal(found.text, "\ud800x");
  assert.equal(characters(found), 2);
  assert.equal(unpack(bytes("d5 02 6162")), "ab");
});

test("two lone surrogates are two characters, a pair is one, and stands in UTF-8", () => {
  assert.equal(characters(unpack(bytes("c7 06 02 edb880 eda0bd"))), 2);
  assert.equal(characters(unpack(bytes("c7 07 02 eda0bd 78 edb880"))), 3);
  refuses("c7 06 02 eda0bd edb880");
  assert.equal(characters(unpack(bytes("a4 f09f9880"))), 1);
});

test("a byte order mark is a character", () => {
  assert.equal(unpack(bytes("a4 efbbbf 61")), "\ufeffa");
  const long = unpack(bytes(`d9 40 efbbbf ${"61".repeat(61)}`));
  assert.equal(long.length, 62);
});

test("keys are text, each once, whatever they are called", () => {
  refuses("82 a161 01 a161 02");
  refuses("81 01 02");
  const found = unpack(bytes("82 a95f5f70726f746f5f5f 01 ab636f6e7374727563746f72 02"));
  assert.ok(isMap(found));
  assert.equal(fieldOf(found, "__proto__"), 1);
  assert.equal(fieldOf(found, "constructor"), 2);
  assert.equal(fieldOf(unpack(bytes("80")), "constructor"), undefined);
  refuses("82 a95f5f70726f746f5f5f 01 a95f5f70726f746f5f5f 02");
});

test("nothing is announced that is not there", () => {
  for (const hex of ["dd ffffffff", "df ffffffff", "db ffffffff", "c6 ffffffff", "c9 ffffffff 01", "dc 0002 01", "c1", ""]) refuses(hex);
  refuses("01 02");
  refuses(`${"91".repeat(3000)}01`);
  assert.throws(() => unpack(new Uint8Array(1_000_006).fill(0xc0).fill(0xdd, 0, 1).fill(0, 1, 2).fill(0x0f, 2, 3).fill(0x42, 3, 4).fill(0x41, 4, 5)), { kind: "limit" });
});

test("extension types of a later version are not known here", () => {
  for (const hex of ["d4 03 00", "d6 ff 00000000", "81 a178 c7 01 09 00"]) {
    assert.throws(() => unpack(bytes(hex)), { kind: "unsupported" });
  }
  refuses("c7 00 01"); // an int of no bytes
});

test("an envelope has its checksum", () => {
  const whole = "92 ce a7fa5365 c404 81a16101";
  assert.deepEqual(openEnvelope(bytes(whole)), bytes("81a16101"));
  assert.throws(() => openEnvelope(bytes(whole.replace("a7", "a6"))), { kind: "damaged" });
});

test("a field of another name than the format has is skipped, also an inherited one", () => {
  const check = record({ a: count, b: optional(text()), c: withDefault(count, 7) });
  assert.deepEqual(check(unpack(bytes("82 a161 01 a17a 02"))), { a: 1, b: undefined, c: 7 });
  assert.throws(() => record({ toString: count })(unpack(bytes("80"))), { kind: "invalid" });
});
