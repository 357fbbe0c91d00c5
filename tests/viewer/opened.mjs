// Opens the tapes in a page that `calltape view --out` wrote, as the page does, and prints what it shows of each.

import { readFile } from "node:fs/promises";

import { leafText } from "../../viewer/src/texts.mjs";
import { embeddedTapes } from "../../viewer/src/embedded.mjs";
import { tapeFacts } from "../../viewer/src/overviews.mjs";
import { sourceOf } from "../../viewer/src/sources.mjs";
import { openTape } from "../../viewer/src/tape.mjs";

const blocks = JSON.parse(await readFile(process.argv[2], "utf8"));
const root = { querySelectorAll: () => blocks.map(({ name, text }) => ({ textContent: text, dataset: { name }, nextElementSibling: { textContent: "{}" } })) };
const found = [];
for (const given of embeddedTapes(root)) {
  const tape = await openTape(await sourceOf(given.file));
  await tape.scan(() => undefined);
  const call = await tape.call(0).catch(() => null);
  found.push({
    name: given.name, size: given.size, bytes: given.file.size, calls: tape.columns.length, corruption: tape.corruption.size,
    facts: Object.fromEntries(tapeFacts(tape)),
    missing: call?.inputs.leaves.map((leaf) => [leafText(leaf), leaf.missing ?? null]),
  });
}
console.log(JSON.stringify(found));
