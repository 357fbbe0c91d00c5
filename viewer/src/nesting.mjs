// Documents of structures and leaves: how deep and how large they may be, before anything else is
// asked of them; and a memory for those that come again in call after call.

import { isMap, unpack } from "./documents.mjs";
import { invalid, overLimit } from "./errors.mjs";
import { MAX_DEPTH, MAX_NESTING, MAX_NODES } from "./limits.mjs";

/**
 * The decoded document of a structure, or of leaves.
 *
 * @throws {TapeError} damaged; limit; invalid if it is neither map nor array
 */
export function checkedTree(bytes, what) {
  const document = unpack(bytes);
  if (!isMap(document) && !Array.isArray(document)) throw invalid(`${what} is no map or array`);
  let level = [document];
  let nodes = 0;
  for (let depth = 0; depth < MAX_NESTING; depth++) {
    const below = [];
    for (const item of level) {
      const isArray = Array.isArray(item);
      if (!isArray) nodes += 1;
      for (const value of isArray ? item : Object.values(item)) {
        if (Array.isArray(value) || isMap(value)) below.push(value);
      }
    }
    if (nodes > MAX_NODES) throw overLimit(`${what} has more than ${MAX_NODES} nodes`);
    if (below.length === 0) return document;
    level = below;
  }
  throw overLimit(`${what} is deeper than ${MAX_DEPTH} levels`);
}

const MAX_REMEMBERED_BYTES = 8 * 1024 * 1024;

export function areEqual(one, other) {
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at++) if (one[at] !== other[at]) return false;
  return true;
}

/** Bytes as a text that is equal for equal bytes. */
export function bytesKey(bytes) {
  let key = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    key += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return key;
}

/** A function that decodes equal bytes once, as long as the remembered ones take little memory. */
export function remembering(decode) {
  const same = new WeakMap(); // by the bytes themselves, whose key may be long
  let known = new Map();
  let held = 0;
  return (bytes) => {
    if (same.has(bytes)) return same.get(bytes);
    const key = bytesKey(bytes);
    const found = known.get(key);
    const made = found ?? decode(bytes);
    same.set(bytes, made);
    if (found !== undefined) return found;
    held += bytes.length;
    if (held > MAX_REMEMBERED_BYTES) {
      known = new Map();
      held = bytes.length;
    }
    known.set(key, made);
    return made;
  };
}

