// Tapes in the page: what is decoded is what was written.

import assert from "node:assert/strict";
import test from "node:test";

import { embeddedTapes } from "../../viewer/src/embedded.mjs";

const page = (...all) => ({
  querySelectorAll: (selector) => {
    assert.equal(selector, 'script[type="application/x-calltape"]');
    return all.map((bytes, at) => ({ textContent: Buffer.from(bytes).toString("base64"), dataset: { name: `${at}.tape` }, nextElementSibling: { textContent: `{"variants":[${at}]}` } }));
  },
});

test("any number of bytes comes back", async () => {
  for (let length = 0; length < 6; length++) {
    const bytes = Uint8Array.from({ length }, (_, at) => 255 - at);
    const [tape] = embeddedTapes(page(bytes));
    assert.equal(tape.size, length);
    assert.deepEqual(new Uint8Array(await tape.file.arrayBuffer()), bytes);
    assert.equal(tape.file.name, "0.tape");
  }
});

test("each tape has its variants", () => {
  assert.deepEqual(embeddedTapes(page([1], [2])).map(({ variants }) => variants), [{ variants: [0] }, { variants: [1] }]);
});

test("a message to the thread that reads has the file", async () => {
  const [, tape] = embeddedTapes(page([1], [2, 3]));
  const { file, name } = structuredClone(tape);
  assert.equal(name, "1.tape");
  assert.deepEqual([...new Uint8Array(await file.arrayBuffer())], [2, 3]);
});

test("a page without tapes has none", () => {
  assert.deepEqual(embeddedTapes(page()), []);
});
