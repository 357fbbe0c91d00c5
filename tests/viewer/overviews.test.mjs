// What a tape says of itself: texts that are the same as those of the commands.

import assert from "node:assert/strict";
import test from "node:test";

import { signatureText } from "../../viewer/src/overviews.mjs";

const KINDS = {
  positional: "POSITIONAL_ONLY", both: "POSITIONAL_OR_KEYWORD", args: "VAR_POSITIONAL", keyword: "KEYWORD_ONLY", kwargs: "VAR_KEYWORD",
};
const parameter = (name, kind, given) => ({ name, kind: KINDS[kind], has_default: given !== undefined, default_missing: false, default: given ?? null });

test("a signature has the marks of its kinds", () => {
  const shown = (...parameters) => signatureText(parameters.map((one) => parameter(...one)));
  assert.equal(shown(["ids", "both"], ["state", "both", null], ["image", "keyword", 2]), "(ids, state=None, *, image=2)");
  assert.equal(shown(["x", "positional"], ["y", "positional"]), "(x, y, /)");
  assert.equal(shown(["x", "positional"], ["y", "both"], ["z", "keyword"], ["rest", "kwargs"]), "(x, /, y, *, z, **rest)");
  assert.equal(shown(["rest", "args"], ["z", "keyword"], ["w", "keyword"]), "(*rest, z, w)");
  assert.equal(shown(["x", "positional"], ["rest", "args"], ["named", "kwargs"]), "(x, /, *rest, **named)");
  assert.equal(shown(["z", "keyword"]), "(*, z)");
  assert.equal(shown(), "()");
});

test("a default that the tape does not have is left out", () => {
  assert.equal(signatureText([{ ...parameter("x", "both", 1), default_missing: true }]), "(x=…)");
});
