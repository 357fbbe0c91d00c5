// Sizes, durations and times as people read them.

import assert from "node:assert/strict";
import test from "node:test";

import { bytesText, durationText, grouped, timeText } from "../../viewer/src/numbers.mjs";

test("a duration has the unit in which it is short", () => {
  assert.equal(durationText(999), "999 ns");
  assert.equal(durationText(1_000), "1.00 µs");
  assert.equal(durationText(1_500_000), "1.50 ms");
  assert.equal(durationText(999_000_000n), "999 ms");
  assert.equal(durationText(12_000_000_000n), "12 s");
  assert.equal(durationText(NaN), "");
});

test("a size has the unit in which it is short", () => {
  assert.equal(bytesText(1023), "1023 bytes");
  assert.equal(bytesText(1536), "1.50 KiB");
  assert.equal(bytesText(20 * 1024 ** 2), "20.0 MiB");
  assert.equal(bytesText(5000 * 1024 ** 4), "5000.0 TiB");
});

test("a time is in UTC", () => {
  assert.equal(timeText(1_700_000_000_123_456_789n), "2023-11-14 22:13:20.123");
  assert.equal(timeText(2n ** 63n - 1n), "2262-04-11 23:47:16.854");
});

test("digits are in groups of three", () => {
  assert.equal(grouped(1234567), "1\u202f234\u202f567");
  assert.equal(grouped(123), "123");
});
