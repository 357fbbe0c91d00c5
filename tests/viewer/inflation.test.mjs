// Deflated bytes, compared with zlib: what it packs comes back, and what it refuses is refused.

import assert from "node:assert/strict";
import test from "node:test";
import zlib from "node:zlib";

import { adler32, crc32 } from "../../viewer/src/checksums.mjs";
import { inflate, inflateZlib } from "../../viewer/src/inflation.mjs";

// A small generator with a seed, so that a failure comes again.
let state = 1;
function random(below) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
}

function sample() {
  const letters = 1 + random(255);
  return Buffer.from(Array.from({ length: random(3000) }, () => random(letters)));
}

const strategies = Object.entries(zlib.constants).filter(([name]) => /^Z_(FILTERED|HUFFMAN_ONLY|RLE|FIXED|DEFAULT_STRATEGY)$/.test(name)).map(([, value]) => value);

test("what zlib deflates comes back, with a dictionary and without", () => {
  for (let round = 0; round < 400; round++) {
    const data = sample();
    const dictionary = round % 2 ? Buffer.concat([data.subarray(0, data.length / 2), sample()]) : undefined;
    const given = dictionary?.length ? { dictionary } : {};
    const packed = zlib.deflateRawSync(data, { level: round % 10, strategy: strategies[round % strategies.length], ...given });
    assert.deepEqual(Buffer.from(inflate(packed, data.length, given.dictionary)), data);
  }
});

test("a dictionary of more than a window counts by its end", () => {
  const data = Buffer.from("abcdefgh".repeat(20));
  const dictionary = Buffer.concat([Buffer.alloc(40_000, 1), data]);
  const packed = zlib.deflateRawSync(data, { dictionary });
  assert.deepEqual(Buffer.from(inflate(packed, data.length, dictionary)), data);
});

test("what zlib refuses is refused, and nothing else", () => {
  let refused = 0;
  for (let round = 0; round < 1500; round++) {
    const data = sample();
    const packed = zlib.deflateRawSync(data, { level: 1 + (round % 9) });
    // The first bytes are the codes, which most mistakes break.
    packed[random(round % 2 ? packed.length : Math.min(60, packed.length))] ^= 1 << random(8);
    let expected = null;
    try {
      const found = zlib.inflateRawSync(packed, { info: true, maxOutputLength: 10_000 });
      if (found.engine.bytesWritten === packed.length) expected = found.buffer;
    } catch {
      // refused
    }
    if (expected === null) refused += 1;
    const size = expected === null ? data.length : expected.length;
    if (expected === null) assert.throws(() => inflate(packed, size), { kind: "damaged" });
    else assert.deepEqual(Buffer.from(inflate(packed, size)), expected);
  }
  assert.ok(refused > 200);
});

test("a size that is not that of the data is refused, and so is what follows", () => {
  const packed = zlib.deflateRawSync(Buffer.alloc(1000));
  for (const size of [0, 999, 1001]) assert.throws(() => inflate(packed, size), { kind: "damaged" });
  assert.throws(() => inflate(Buffer.concat([packed, Buffer.alloc(1)]), 1000), { kind: "damaged" });
  for (let length = 0; length < packed.length; length++) {
    assert.throws(() => inflate(packed.subarray(0, length), 1000), { kind: "damaged" });
  }
});

test("a stream of zlib comes back, and its checksum counts", () => {
  for (let round = 0; round < 50; round++) {
    const data = sample();
    const packed = zlib.deflateSync(data);
    assert.deepEqual(Buffer.from(inflateZlib(packed, data.length)), data);
    packed[packed.length - 1] ^= 1;
    assert.throws(() => inflateZlib(packed, data.length), { kind: "damaged" });
  }
});

test("a distance before the dictionary is refused", () => {
  const data = Buffer.from("abcdefgh".repeat(20));
  const packed = zlib.deflateRawSync(data, { dictionary: data });
  assert.throws(() => inflate(packed, data.length), { kind: "damaged" });
});

test("checksums are those of the standards", () => {
  const check = Buffer.from("123456789");
  assert.equal(crc32(check), 0xcbf43926);
  assert.equal(adler32(check), 0x091e01de);
  const data = Buffer.concat(Array.from({ length: 10 }, sample));
  assert.equal(crc32(data.subarray(777), crc32(data.subarray(0, 777))), crc32(data));
});
