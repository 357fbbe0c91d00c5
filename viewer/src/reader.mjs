// The thread that reads. The page asks, and gets plain data; all bytes of the tape stay here.

import { blobBytes } from "./blob.mjs";
import { NOT_NUMBERED } from "./columns.mjs";
import { callFacts, inputsTree, labelOf, outputsTree, positionalNames } from "./descriptions.mjs";
import { Dimensions } from "./dimensions.mjs";
import { elementsIn, isQuantized, storedShape } from "./dtypes.mjs";
import { TapeError } from "./errors.mjs";
import { listed, needsRecords } from "./listing.mjs";
import { tapeFacts } from "./overviews.mjs";
import { RangeSource, sourceOf } from "./sources.mjs";
import { openTape } from "./tape.mjs";
import { bytesText, durationText, timeText } from "./numbers.mjs";
import { elementText, hexText, plainText } from "./texts.mjs";
import { wholeTensor } from "./tensor_statistics.mjs";

const SCANNED_AT_ONCE = 16 * 1024 * 1024;
const MOST_ROWS = 500;
const MOST_ELEMENTS = 1000;
const BINS = 300;
const PAUSE_MS = 100; // between two reports of progress

class Reader {
  constructor(report) {
    this.report = report;
    this.reported = 0;
    this.tape = null;
  }

  /** Tells the page how far a long work is, now and then. */
  progress(what, done, total) {
    const now = performance.now();
    if (now - this.reported < PAUSE_MS) return undefined;
    this.reported = now;
    this.report({ what, done, total });
    // Lets the thread take messages, so that it can be ended.
    return new Promise((resolve) => setTimeout(resolve));
  }

  async open({ file, url, name, size }) {
    const source = file === undefined
      ? new RangeSource(url, name, size)
      : await sourceOf(file, (done) => this.progress("decompressing", done, null));
    const tape = await openTape(source);
    this.tape = tape;
    this.name = source.name;
    this.nameAt = positionalNames(tape.manifest.target);
    this.call_ = null;
    const isLarge = source.size > SCANNED_AT_ONCE;
    if (!isLarge || !(await tape.readEnd())) return this.scan();
    return this.settled();
  }

  async scan() {
    const { tape } = this;
    await tape.scan((done) => this.progress("reading records", done, tape.source.size));
    return this.settled();
  }

  /** Makes what follows from the calls that are known now. */
  settled() {
    const { tape } = this;
    const isCounted = tape.isScanned && !tape.end?.elsewhere;
    const entries = isCounted ? tape.distinct.entries : tape.table?.rows ?? [];
    this.dimensions = new Dimensions(entries, this.nameAt, isCounted ? 0n : tape.table?.rest ?? 0n);
    for (const [{ calls, first }, error] of tape.isScanned ? this.dimensions.errors : []) {
      error.message = `call ${first}${calls > 1n ? `, and ${calls - 1n} more` : ""}: ${error.message}`;
      tape.addCorruption(error.at({ offset: this.offsetOf(first) }));
    }
    this.labels = tape.isScanned ? entries.map((_, number) => this.label(this.dimensions.sideOf(number))) : [];
    this.order = tape.columns.order();
    this.shown = this.order;
    return this.overview();
  }

  /** Where the group of a call begins. */
  offsetOf(number) {
    const { columns } = this.tape;
    return columns.offsets[columns.position(number)] ?? null;
  }

  label(side) {
    return side === null ? "inputs that break the format" : labelOf(side, this.nameAt);
  }

  overview() {
    const { tape } = this;
    return {
      name: this.name, size: bytesText(tape.source.size), calls: tape.columns.length,
      isSealed: tape.isSealed, isScanned: tape.isScanned, unfinished: tape.unfinished,
      target: tape.manifest.target === undefined ? null : `${tape.manifest.target.type}.${tape.manifest.target.method}`,
      corruption: tape.corruption.size, facts: tapeFacts(tape),
    };
  }

  async list({ sort, isDescending, filter }) {
    if (!this.tape.isScanned && needsRecords(sort, filter)) await this.scan();
    const { columns } = this.tape;
    const found = listed({ columns, order: this.order, labels: this.labels, sort, isDescending, filter });
    this.shown = found.positions;
    return { count: found.positions.length, unknown: found.unknown, overview: this.overview() };
  }

  async rows({ from, to }) {
    const found = [];
    for (let at = Math.max(0, from); at < Math.min(to, from + MOST_ROWS, this.shown.length); at++) {
      found.push(await this.row(this.shown[at]));
    }
    return found;
  }

  async row(position) {
    const { columns, isScanned } = this.tape;
    const inputs = columns.inputs[position];
    const made = { position, number: String(columns.number(position)) };
    if (isScanned && inputs !== NOT_NUMBERED) {
      return {
        ...made, time: timeText(columns.times[position]), duration: durationText(columns.durations[position]),
        bytes: bytesText(columns.blobs[position]), inputs: this.labels[inputs], raised: columns.raised[position] === 1,
      };
    }
    try {
      const { record, inputs: side } = await this.tape.call(position);
      return {
        ...made, time: timeText(record.time_ns), duration: durationText(record.duration_ns ?? NaN),
        bytes: bytesText(blobBytes(record)), inputs: this.label(side), raised: record.error !== undefined,
      };
    } catch (error) {
      return { ...made, time: "", duration: "", bytes: "", inputs: reasonOf(error), isBroken: true };
    }
  }

  /** Everything about one call but the elements of its tensors. */
  async call({ position }) {
    let call;
    try {
      call = await this.tape.call(position);
    } catch (error) {
      if (error instanceof TapeError) this.tape.addCorruption(error);
      throw error;
    }
    this.call_ = call;
    const { record } = call;
    const times = { began: `${timeText(record.time_ns)} UTC`, took: durationText(record.duration_ns ?? NaN) };
    return {
      position, number: String(record.call), facts: callFacts(record, times),
      error: record.error === undefined ? null : { type: record.error.type, message: plainText(record.error.message).slice(0, 20_000) },
      blob: record.blob === undefined ? null : bytesText(blobBytes(record)),
      inputs: inputsTree(call.inputs, this.nameAt, call.elsewhere),
      outputs: call.outputs === null ? null : outputsTree(call.outputs, call.elsewhere),
    };
  }

  leaf(side, number) {
    const found = this.call_?.[side === "outputs" ? "outputs" : "inputs"]?.leaves[number];
    if (found === undefined) throw new TapeError("usage", "there is no such tensor");
    return found;
  }

  /** Elements `from` up to `from + count` of a tensor, as text. The checksum is compared before. */
  async elements({ side, leaf: number, from, count }) {
    const leaf = this.leaf(side, number);
    return this.located(async () => {
      const { size, width } = await this.call_.placeOf(leaf, (done, total) => this.progress("comparing the checksum", done, total));
      const bytes = await this.call_.bytesOf(leaf, from, from + Math.min(count, MOST_ELEMENTS));
      const shape = storedShape(leaf).map(Number);
      return { shape, dtype: leaf.dtype, total: size / width, from, texts: elementTexts(leaf.dtype, bytes), isQuantized: isQuantized(leaf.dtype) };
    });
  }

  /** Least, greatest, mean and odd elements of a whole tensor. */
  async statistics({ side, leaf: number }) {
    const leaf = this.leaf(side, number);
    return this.located(() => wholeTensor(this.call_, leaf, (done, total) => this.progress("reading the tensor", done, total)));
  }

  /** What is wrong with the values of a call is corruption of the tape. */
  async located(work) {
    try {
      return await work();
    } catch (error) {
      if (error instanceof TapeError && error.kind !== "io") {
        this.tape.addCorruption(error.at({ offset: this.call_.group }));
      }
      throw error;
    }
  }

  async dimensionRows() {
    return { rows: this.dimensions.rows(), broken: this.dimensions.broken, rest: String(this.dimensions.rest), groups: this.dimensions.groups.map(({ label, calls }) => ({ label, calls })) };
  }

  async dimension({ group, column }) {
    const { columns, isScanned } = this.tape;
    const series = isScanned ? this.dimensions.series(group, column, columns, this.order, BINS) : null;
    const layouts = this.dimensions.layouts(group, column);
    return { ...this.dimensions.histogram(group, column), series, layouts, isElsewhere: this.tape.end?.elsewhere === true };
  }

  async corruption() {
    return Array.from(this.tape.corruption.values(), (error) => error.plain());
  }

  /** Compares everything that is on the tape: every record, every tree, every checksum. */
  async verify() {
    if (!this.tape.isScanned) await this.scan();
    let done = 0;
    for (const position of this.order) {
      await this.progress("comparing all checksums", done, this.order.length);
      done += 1;
      try {
        const call = await this.tape.call(position);
        await call.check((read) => this.progress("comparing all checksums", done, this.order.length));
        for (const side of [call.inputs, call.outputs]) {
          for (const leaf of side?.leaves ?? []) if (leaf.key !== undefined) await call.placeOf(leaf);
        }
      } catch (error) {
        if (!(error instanceof TapeError)) throw error;
        this.tape.addCorruption(error.at({ offset: this.tape.columns.offsets[position] }));
      }
    }
    return this.overview();
  }
}

function elementTexts(dtype, bytes) {
  const { kind, values } = elementsIn(dtype, bytes);
  const form = {
    bool: (one) => (one ? "True" : "False"), int: String, float: (one) => elementText(dtype, one),
    complex: ([real, imaginary]) => `${elementText(dtype, real)}${imaginary < 0 || Object.is(imaginary, -0) ? "" : "+"}${elementText(dtype, imaginary)}j`,
    bits: (one) => `0x${hexText(one)}`,
  }[kind];
  return values.map((one) => form(one));
}

const reasonOf = (error) => (error instanceof TapeError ? error.message : String(error));

const ASKS = ["open", "scan", "list", "rows", "call", "elements", "statistics", "dimensionRows", "dimension", "corruption", "verify"];
const reader = new Reader((progress) => postMessage({ progress }));
let last = Promise.resolve(); // one question after the other

addEventListener("message", ({ data: { id, ask, given } }) => {
  last = last.then(async () => {
    reader.reported = performance.now(); // short work reports no progress
    try {
      if (!ASKS.includes(ask)) throw new TapeError("usage", "there is no such question");
      postMessage({ id, answer: await reader[ask](given) });
    } catch (error) {
      const plain = error instanceof TapeError ? error.plain() : { kind: "bug", reason: String(error), member: null, offset: null };
      postMessage({ id, error: plain });
    }
  });
});
