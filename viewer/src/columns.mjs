// What is known of each call, a few bytes per call, in arrays that grow.

import { TapeError, overLimit } from "./errors.mjs";
import { plainInt } from "./documents.mjs";

const MOST_CALLS = 32 * 1024 * 1024;
const FIRST_ROOM = 1024;

/** In the column `inputs`: there were too many distinct inputs to number these. */
export const NOT_NUMBERED = 0xffffffff;

const TYPES = {
  numbers: BigUint64Array,
  offsets: Float64Array, // of the header of the group
  times: Float64Array, // nanoseconds since 1970, to about 256 ns
  durations: Float64Array, // nanoseconds; NaN if not measured
  blobs: Float64Array, // bytes of tensors
  inputs: Uint32Array, // the number of the distinct inputs
  raised: Uint8Array,
};

/** The calls of a tape, in the order in which they were added. */
export class Columns {
  constructor(room = FIRST_ROOM) {
    this.length = 0;
    this.sorted = null;
    for (const [name, Type] of Object.entries(TYPES)) this[name] = new Type(room);
  }

  add(number, offset, time, duration, blob, inputs, raised) {
    const at = this.length;
    if (at === this.numbers.length) this.grow();
    this.numbers[at] = BigInt(number);
    this.offsets[at] = offset;
    this.times[at] = time;
    this.durations[at] = duration;
    this.blobs[at] = blob;
    this.inputs[at] = inputs;
    this.raised[at] = raised ? 1 : 0;
    this.length = at + 1;
  }

  grow() {
    const room = 2 * this.numbers.length;
    if (room > MOST_CALLS) throw overLimit(`more than ${MOST_CALLS / 2} calls; the command line reads them`);
    for (const [name, Type] of Object.entries(TYPES)) {
      const wider = new Type(room);
      wider.set(this[name]);
      this[name] = wider;
    }
  }

  number(position) {
    if (position >= this.length) throw new TapeError("usage", "there is no such call");
    return plainInt(this.numbers[position]);
  }

  /** The positions of the calls, in the order of their numbers. No call is added any more. */
  order() {
    this.sorted ??= this.sort();
    return this.sorted;
  }

  sort() {
    const { numbers, length } = this;
    const positions = Uint32Array.from({ length }, (_, at) => at);
    for (let at = 1; at < length; at++) {
      if (numbers[at] < numbers[at - 1]) {
        return positions.sort((one, other) => (numbers[one] < numbers[other] ? -1 : 1));
      }
    }
    return positions;
  }

  /** The position of the call of a number; undefined if there is none. */
  position(number) {
    const { numbers } = this;
    const order = this.order();
    const wanted = BigInt(number);
    let [low, high] = [0, order.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (numbers[order[middle]] < wanted) low = middle + 1;
      else high = middle;
    }
    return low < order.length && numbers[order[low]] === wanted ? order[low] : undefined;
  }
}
