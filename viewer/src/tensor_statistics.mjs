// What all elements of a tensor are like together, read in pieces.

import { elementsIn } from "./dtypes.mjs";
import { grouped } from "./numbers.mjs";
import { elementText } from "./texts.mjs";

const PIECE = 256 * 1024; // elements

class Totals {
  constructor() {
    Object.assign(this, { count: 0, min: null, max: null, sum: 0, nans: 0, infinities: 0, zeros: 0 });
  }

  add(value) {
    this.count += 1;
    const plain = Number(value);
    if (Number.isNaN(plain)) {
      this.nans += 1;
    } else if (!Number.isFinite(plain)) {
      this.infinities += 1;
    } else {
      this.sum += plain;
      if (plain === 0) this.zeros += 1;
    }
    if (!Number.isNaN(plain) && (this.min === null || value < this.min)) this.min = value;
    if (!Number.isNaN(plain) && (this.max === null || value > this.max)) this.max = value;
  }
}

/** Pairs of a name and a text; empty for elements that are bits or complex.
 *
 * @param onProgress called with bytes that were read, and all bytes; its promise is waited for.
 */
export async function wholeTensor(call, leaf, onProgress) {
  const { size, width } = await call.placeOf(leaf, onProgress);
  const total = size / width;
  const totals = new Totals();
  let kind = null;
  for (let at = 0; at < total; at += PIECE) {
    const found = elementsIn(leaf.dtype, await call.bytesOf(leaf, at, at + PIECE));
    kind = found.kind;
    if (kind === "bits" || kind === "complex") return [["elements", grouped(total)]];
    for (const value of found.values) totals.add(value);
    await onProgress(Math.min(at + PIECE, total) * width, size);
  }
  return factsOf(totals, leaf.dtype, kind);
}

function factsOf(totals, dtype, kind) {
  const { count, min, max, sum, nans, infinities, zeros } = totals;
  const facts = [["elements", grouped(count)]];
  if (kind === "bool") return [...facts, ["True", grouped(count - zeros)], ["False", grouped(zeros)]];
  const text = (value) => (kind === "float" ? elementText(dtype, value) : String(value));
  if (min !== null) facts.push(["smallest", text(min)], ["largest", text(max)]);
  const finite = count - nans - infinities;
  if (finite > 0) facts.push(["mean", String(Number((sum / finite).toPrecision(7)))]);
  facts.push(["zeros", grouped(zeros)]);
  if (kind === "float") facts.push(["NaN", grouped(nans)], ["infinite", grouped(infinities)]);
  return facts;
}
