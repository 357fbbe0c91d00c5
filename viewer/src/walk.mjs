// The walk over a tape from header to header, also over corruption (FORMAT.md, section 2).

import { damaged } from "./errors.mjs";
import { BLOCK, parseHeader } from "./framing.mjs";

const MAGIC_AT = 257;
const SEARCHED = 256 * 1024;

/**
 * Calls `onMember(member)` for each member that is a regular file, in the order of the file. It may
 * return a promise, which is waited for.
 *
 * @param {Window} window of the file.
 * @param {number} start the offset of the first header.
 * @param {(member: Member) => Promise|undefined} onMember
 * @param {(error: TapeError) => void} onCorruption
 * @param {(offset: number) => Promise|undefined} onProgress called at each header.
 * @param {number|undefined} last the offset of the header of the last member, if it is known: none reaches into it.
 */
export async function walk(window, start, onMember, onCorruption, onProgress = () => undefined, last = undefined) {
  let offset = start;
  while (offset < window.size) {
    const waiting = onProgress(offset);
    if (waiting !== undefined) await waiting;
    const block = window.peek(offset, BLOCK) ?? (await window.at(offset, BLOCK));
    const member = parseHeader(block, offset);
    // A file that ends within the padding still has the whole content.
    const most = last === undefined || offset >= last ? window.size : last;
    if (member !== null && member.start + member.size <= most) {
      if (member.name !== "") {
        const pending = onMember(member);
        if (pending !== undefined) await pending;
      }
      offset = member.end;
      continue;
    }
    const next = await nextHeader(window, offset + BLOCK, onProgress);
    if (member === null && next === null && !(await holdsData(window, offset))) return;
    const end = next ?? window.size;
    const what = member === null ? "no member begins here" : "a member is cut short";
    onCorruption(damaged(`${what}, ${end - offset} bytes skipped`).at({ member: member?.name, offset }));
    if (next === null) return;
    offset = next;
  }
}

/** The offset of the next block that is a header; null if there is none. */
async function nextHeader(window, start, onProgress) {
  for (let offset = start; offset < window.size; ) {
    const waiting = onProgress(offset);
    if (waiting !== undefined) await waiting;
    const part = await window.at(offset, SEARCHED);
    for (let at = 0; at + BLOCK <= part.length; at += BLOCK) {
      if (part[at + MAGIC_AT] === 117 && parseHeader(part.subarray(at, at + BLOCK), offset + at)) {
        return offset + at;
      }
    }
    if (part.length < BLOCK) return null;
    offset += part.length - (part.length % BLOCK);
  }
  return null;
}

async function holdsData(window, start) {
  for (let offset = start; offset < window.size; offset += SEARCHED) {
    const part = await window.at(offset, SEARCHED);
    if (part.some((byte) => byte !== 0)) return true;
  }
  return false;
}
