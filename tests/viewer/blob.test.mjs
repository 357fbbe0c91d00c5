// Blobs with checksums of their parts, and compressed ones: what is read of them, and what is refused.

import assert from "node:assert/strict";
import test from "node:test";
import zlib from "node:zlib";

import { Blob, expectKnownBlob } from "../../viewer/src/blob.mjs";
import { crc32 } from "../../viewer/src/checksums.mjs";
import { Member } from "../../viewer/src/framing.mjs";
import { Remembered } from "../../viewer/src/remembered.mjs";

const MIB = 1024 * 1024;

/** A file that is this content behind a block, and notes what is read of it. */
class Source {
  constructor(content) {
    this.bytes = new Uint8Array(512 + content.length);
    this.bytes.set(content, 512);
    this.read = (offset, length) => {
      for (let at = Math.floor((offset - 512) / MIB); at * MIB < offset - 512 + length; at++) this.seen.add(at);
      return Promise.resolve(this.bytes.slice(offset, offset + length));
    };
    this.seen = new Set(); // numbers of the MiB
  }
}

/** A safetensors file of bytes of tensors, so many each. */
function fileOf(sizes) {
  let at = 0;
  const entries = Object.entries(sizes).map(([name, size]) => [name, { dtype: "U8", shape: [size], data_offsets: [at, (at += size)] }]);
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const found = new Uint8Array(8 + json.length + at);
  new DataView(found.buffer).setBigUint64(0, BigInt(json.length), true);
  found.set(json, 8);
  for (let byte = 8 + json.length; byte < found.length; byte++) found[byte] = byte % 251;
  return found;
}

function stepsOf(content) {
  const count = Math.max(0, Math.ceil(content.length / MIB) - 1);
  const view = new DataView(new ArrayBuffer(4 * count));
  for (let at = 0; at < count; at++) view.setUint32(4 * at, crc32(content.subarray(0, (at + 1) * MIB)), true);
  return new Uint8Array(view.buffer);
}

const inflatedBlobs = () => new Remembered(MIB, null, (content) => content.length);

function blobOf(content, told = {}) {
  const source = new Source(content);
  const facts = { checksum: crc32(content), algorithm: 0, codec: 0, ...told };
  const member = new Member("blobs/00000000.safetensors", 0, content.length);
  return { source, blob: new Blob(source, member, 0, facts, inflatedBlobs()) };
}

const SIZES = { a: 1.5 * MIB, b: 2 * MIB, c: 100 };
const FILE = fileOf(SIZES);

async function valueOf(blob, key) {
  const { entries, start } = await blob.entries();
  const { begin, end } = entries.get(key);
  return blob.bytes(start + begin, end - begin);
}

test("of a blob with steps those MiB are read that a value needs, and the header", async () => {
  const { source, blob } = blobOf(FILE, { steps: stepsOf(FILE) });
  const found = await valueOf(blob, "c");
  assert.deepEqual(found, FILE.slice(-100));
  assert.deepEqual([...source.seen].sort(), [0, 3]);
  await valueOf(blob, "b");
  assert.deepEqual([...source.seen].sort(), [0, 1, 2, 3]);
});

test("of one without, all are", async () => {
  const { source, blob } = blobOf(FILE);
  await valueOf(blob, "c");
  assert.equal(source.seen.size, 4);
});

test("a flipped bit costs the values that lie in its MiB, and a whole check all", async () => {
  for (const [at, broken] of [[0.7 * MIB, "abc"], [1.2 * MIB, "ab"], [2.5 * MIB, "b"], [FILE.length - 1, "bc"]]) {
    const content = FILE.slice();
    content[Math.floor(at)] ^= 1;
    for (const key of ["a", "b", "c"]) {
      const { blob } = blobOf(content, { checksum: crc32(FILE), steps: stepsOf(FILE) });
      if (broken.includes(key)) await assert.rejects(valueOf(blob, key), { kind: "damaged" });
      else await valueOf(blob, key);
      await assert.rejects(blob.check(), { kind: "damaged" });
      const whole = blobOf(content, { checksum: crc32(FILE) }).blob;
      await assert.rejects(valueOf(whole, key), { kind: "damaged" });
    }
  }
});

test("a step that does not hold is told though the whole does", async () => {
  const steps = stepsOf(FILE);
  steps[5] ^= 1; // of the first two MiB
  const { blob } = blobOf(FILE, { steps });
  await assert.rejects(blob.check(), { kind: "damaged" });
  assert.deepEqual(await valueOf(blob, "c"), FILE.slice(-100));
  await assert.rejects(valueOf(blob, "b"), { kind: "damaged" });
});

test("a blob of whole MiB has a step less", async () => {
  for (const size of [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB]) {
    const content = FILE.subarray(0, size);
    const { blob } = blobOf(content, { steps: stepsOf(content) });
    await blob.check();
    assert.deepEqual(await blob.bytes(0, size), content.slice());
  }
});

test("a compressed blob is inflated once, and is as long as it says", async () => {
  const packed = new Uint8Array(zlib.deflateSync(FILE));
  const { source, blob } = blobOf(packed, { codec: 1, length: FILE.length });
  assert.deepEqual(await valueOf(blob, "c"), FILE.slice(-100));
  source.seen.clear();
  await valueOf(blob, "a");
  assert.equal(source.seen.size, 0);
  for (const [length, kind] of [[FILE.length - 1, "damaged"], [FILE.length + 1, "damaged"], [2 ** 28 + 1, "limit"], [2n ** 62n, "limit"]]) {
    await assert.rejects(valueOf(blobOf(packed, { codec: 1, length }).blob, "c"), { kind });
  }
  const wrong = blobOf(packed, { codec: 1, length: 2 ** 28 + 1, checksum: 5 }).blob;
  await assert.rejects(valueOf(wrong, "c"), { kind: "damaged" });
});

test("of inflated blobs the last ones are remembered, by their bytes", async () => {
  const remembered = new Remembered(10, null, (content) => content.length);
  let made = 0;
  const get = (key, size) => remembered.get(key, async () => new Uint8Array((made += 1) && size));
  for (const [key, size, count] of [["a", 4, 1], ["b", 6, 2], ["a", 4, 2], ["c", 1, 3], ["a", 4, 3], ["b", 6, 4], ["d", 50, 5], ["d", 50, 5], ["a", 4, 6]]) {
    await get(key, size);
    assert.equal(made, count, `${key} ${size}`);
  }
});

test("what a later version has is not known here", () => {
  for (const facts of [{ algorithm: 1, codec: 0 }, { algorithm: 0, codec: 2 }]) {
    assert.throws(() => expectKnownBlob(facts), { kind: "unsupported" });
  }
  for (const codec of [0, 1]) expectKnownBlob({ algorithm: 0, codec });
});
