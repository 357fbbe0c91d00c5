// The tar members of a tape: their headers and names (FORMAT.md, section 2).

export const BLOCK = 512;
export const MANIFEST = "tape.msgpack";
export const END = "end.msgpack";
export const COUNTS = "counts.msgpack";

const SPACE = 32;
const BLOB = /^blobs\/([0-9]{8}|[1-9][0-9]{8,18})\.safetensors(\.zlib)?$/;
const GROUP = /^records\/([0-9]{8}|[1-9][0-9]{8,18})\.msgpack$/;

/** A member: the offset of its header, and the size of its content, in bytes. The name is empty if
 * it is no regular file. */
export class Member {
  constructor(name, offset, size) {
    this.name = name;
    this.offset = offset;
    this.size = size;
  }

  get start() {
    return this.offset + BLOCK;
  }

  /** The offset of the next header. */
  get end() {
    return this.offset + BLOCK + Math.ceil(this.size / BLOCK) * BLOCK;
  }
}

/** Octal digits, then only zero bytes and spaces; -1 for anything else. */
function octal(block, from, to) {
  let end = to;
  while (end > from && (block[end - 1] === 0 || block[end - 1] === SPACE)) end--;
  if (end === from) return -1;
  let value = 0;
  for (let at = from; at < end; at++) {
    const digit = block[at] - 48;
    if (digit < 0 || digit > 7) return -1;
    value = value * 8 + digit;
  }
  return value;
}

/** A size in base 256; -1 from 2**63 bytes on. Sizes above 2**53 are rounded: no file has them. */
function wideSize(block) {
  if (block[125] | block[126] | block[127] || block[128] > 127) return -1;
  let value = 0;
  for (let at = 128; at < 136; at++) value = value * 256 + block[at];
  return value;
}

/** The member that a block describes; null if the block is no header. */
export function parseHeader(block, offset) {
  if (block.length < BLOCK) return null;
  // "ustar"
  if (block[257] !== 117 || block[258] !== 115 || block[259] !== 116 || block[260] !== 97 || block[261] !== 114) {
    return null;
  }
  const size = block[124] === 0x80 ? wideSize(block) : octal(block, 124, 136);
  if (size < 0) return null;
  let total = 8 * SPACE;
  for (let at = 0; at < 148; at++) total += block[at];
  for (let at = 156; at < BLOCK; at++) total += block[at];
  if (octal(block, 148, 156) !== total) return null;
  let end = 100;
  while (end > 0 && block[end - 1] === 0) end--;
  let name = "";
  for (let at = 0; at < end; at++) {
    if (block[at] === 0 || block[at] > 127) return null;
    name += String.fromCharCode(block[at]);
  }
  const isRegular = block[156] === 48 || block[156] === 0;
  return new Member(isRegular ? name : "", offset, size);
}

/** Whether a member of this name holds the tensors of a call. */
export const isBlob = (name) => BLOB.test(name);

/** Whether a member of this name is a group of records. */
export const isGroup = (name) => GROUP.test(name);

/** The name of the tensors of a call; `codec` is what compresses them. */
export const blobName = (number, codec) => `blobs/${String(number).padStart(8, "0")}.safetensors${codec === 0 ? "" : ".zlib"}`;
