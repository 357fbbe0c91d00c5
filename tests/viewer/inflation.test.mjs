// Inflated bytes, compared with zlib: what it packs comes back, and what it refuses is refused.

import assert from "node:assert/strict";
import test from "node:test";
import zlib from "node:zlib";

import { crc32 } from "../../viewer/src/checksums.mjs";
import { inflated } from "../../viewer/src/inflation.mjs";

// A small generator with a seed, so that a failure comes again.
let state = 1;
function random(below) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
}

function sample(most = 3000) {
  const letters = 1 + random(255);
  return Buffer.from(Array.from({ length: random(most) }, () => random(letters)));
}

const MOST = 2 ** 20;
const inflate = (packed, size, most = MOST) => inflated(new Uint8Array(packed), size, most, "it");
const refuses = (packed, size, kind = "damaged", most = MOST) => assert.rejects(inflate(packed, size, most), { kind });

test("what zlib deflates comes back", async () => {
  for (let round = 0; round < 200; round++) {
    const data = sample(round % 20 ? 3000 : 200_000);
    const packed = zlib.deflateSync(data, { level: round % 10 });
    assert.deepEqual(Buffer.from(await inflate(packed, data.length)), data);
  }
});

test("what zlib refuses is refused", async () => {
  let refused = 0;
  for (let round = 0; round < 300; round++) {
    const data = sample();
    const packed = zlib.deflateSync(data, { level: 1 + (round % 9) });
    packed[random(round % 2 ? packed.length : Math.min(60, packed.length))] ^= 1 << random(8);
    let expected = null;
    try {
      expected = zlib.inflateSync(packed);
    } catch {
      refused += 1;
    }
    if (expected === null) await refuses(packed, data.length);
    else assert.deepEqual(Buffer.from(await inflate(packed, expected.length)), expected);
  }
  assert.ok(refused > 200);
});

test("a size that is not that of the data is refused, and so is what follows", async () => {
  const packed = zlib.deflateSync(Buffer.alloc(1000));
  for (const size of [0, 999, 1001]) await refuses(packed, size);
  await refuses(Buffer.concat([packed, Buffer.alloc(1)]), 1000);
  for (let length = 0; length < packed.length; length++) await refuses(packed.subarray(0, length), 1000);
});

test("what says that it is too large is not inflated", async () => {
  const packed = zlib.deflateSync(Buffer.alloc(1000));
  await refuses(packed, 1000, "limit", 999);
  for (const size of [-1, 2 ** 53, 2n ** 63n]) await refuses(packed, size, "limit");
});

test("a bomb is given up when it becomes more than it says", async () => {
  const bomb = zlib.deflateSync(Buffer.alloc(256 * 2 ** 20), { level: 9 });
  const before = process.resourceUsage().maxRSS;
  await refuses(bomb, 5000);
  assert.ok(process.resourceUsage().maxRSS - before < 128 * 1024); // KiB
});

test("checksums are those of the standards", () => {
  assert.equal(crc32(Buffer.from("123456789")), 0xcbf43926);
  const data = Buffer.concat(Array.from({ length: 10 }, () => sample()));
  assert.equal(crc32(data.subarray(777), crc32(data.subarray(0, 777))), crc32(data));
});
