// Checks of decoded documents against what FORMAT.md says of their fields. A check is a function
// from a value to the value that the reader goes on with; it throws a TapeError of kind invalid.

import { Float, SurrogateText, characters, fieldOf, isInt, isMap } from "./documents.mjs";
import { invalid, unsupported } from "./errors.mjs";
import { MAX_COUNT, MAX_SHORT, MAX_TYPE_NAME, MAX_UINT64, MIN_INT64 } from "./limits.mjs";

const shown = (value) =>
  value === null ? "nil" : Array.isArray(value) ? "an array" : isMap(value) ? "a map"
    : value instanceof Uint8Array ? "bin" : value instanceof Float ? "a float"
      : isInt(value) ? `the int ${value}` : typeof value === "boolean" ? `${value}` : "text";

const wrong = (value, wanted) => invalid(`${shown(value)} where ${wanted} should be`);

/** The features that this reader knows (FORMAT.md, section 9). */
const KNOWN = new Set();
const MAX_FEATURES = 64;

/**
 * Throws if a part of a tape requires features that this reader does not know, before anything else of it is looked
 * at. A list that breaks the format is left to `features`.
 *
 * @throws {TapeError} unsupported
 */
export function expectKnown(document, what) {
  const wanted = isMap(document) ? fieldOf(document, "requires") : undefined;
  if (!Array.isArray(wanted) || wanted.length > MAX_FEATURES) return;
  if (!wanted.every((one) => typeof one === "string" && one !== "" && characters(one) <= 64)) return;
  const unknown = wanted.filter((one) => !KNOWN.has(one));
  if (unknown.length > 0) throw unsupported(`${what} requires what this reader does not know: ${unknown.slice(0, 5).join(", ")}`);
}

/** An int from `min` to `max`. */
export function int(min = 0, max = MAX_COUNT) {
  return (value) => {
    if (!isInt(value) || value < min || value > max) throw wrong(value, `an int from ${min} to ${max}`);
    return value;
  };
}

export const count = int();
export const uint64 = int(0, MAX_UINT64);
export const int64 = int(MIN_INT64, MAX_UINT64);

export function bool(value) {
  if (typeof value !== "boolean") throw wrong(value, "a bool");
  return value;
}

/** A float, or an int, which stands for the nearest one. */
export function number(value) {
  if (!(value instanceof Float) && !(isInt(value) && Number.isFinite(Number(value)))) throw wrong(value, "a float");
  return value;
}

/** A finite number that is not negative. */
export function seconds(value) {
  const found = Number(number(value) instanceof Float ? value.value : value);
  if (!(found >= 0 && found < Infinity)) throw wrong(value, "a finite number of seconds");
  return value;
}

/** UTF-8 text of at most so many characters. */
export function text(max = MAX_SHORT, min = 0) {
  return (value) => {
    if (typeof value !== "string") throw wrong(value, "text");
    const length = value.length <= max ? value.length : characters(value);
    if (length > max || length < min) throw invalid(`a text of ${length} characters (at most ${max})`);
    return value;
  };
}

/** Text that may have lone surrogates. */
export function anyText(max = MAX_SHORT) {
  return (value) => {
    if (typeof value !== "string" && !(value instanceof SurrogateText)) throw wrong(value, "text");
    if (value.length > max && characters(value) > max) {
      throw invalid(`a text of ${characters(value)} characters (at most ${max})`);
    }
    return value;
  };
}

const TYPE_NAME = /^[^:\p{White_Space}]+:[^:\p{White_Space}]+$/u;

/** `module:qualified.name`. It is never looked up here. */
export function typeName(value) {
  if (!TYPE_NAME.test(text(MAX_TYPE_NAME)(value))) throw invalid("a type name without one colon");
  return value;
}

export function bytes(length = null) {
  return (value) => {
    if (!(value instanceof Uint8Array)) throw wrong(value, "bin");
    if (length !== null && value.length !== length) throw invalid(`bin of ${value.length} bytes`);
    return value;
  };
}

export const tapeId = bytes(16);

/** One of some texts. */
export function oneOf(...names) {
  return (value) => {
    if (!names.includes(value)) throw wrong(value, `one of ${names.join(", ")}`);
    return value;
  };
}

export function array(check, max = Infinity) {
  return (value) => {
    if (!Array.isArray(value)) throw wrong(value, "an array");
    if (value.length > max) throw invalid(`an array of ${value.length} elements (at most ${max})`);
    return value.map(check);
  };
}

/** An array with one check for each of its elements. */
export function tuple(...checks) {
  return (value) => {
    if (!Array.isArray(value) || value.length !== checks.length) {
      throw wrong(value, `an array of ${checks.length}`);
    }
    return value.map((item, at) => checks[at](item));
  };
}

/** Numbers as at most so many runs that ascend, with gaps between them. */
export function runs(max) {
  const check = array(tuple(count, count), max);
  return (value) => {
    const found = check(value);
    found.forEach(([first, last], at) => {
      const before = at === 0 ? -2n : BigInt(found[at - 1][1]);
      if (BigInt(first) < before + 2n || first > last) throw invalid("runs of numbers that do not ascend");
    });
    return found;
  };
}

/** A map from text to checked values, as an array of pairs. */
export function pairs(check, max) {
  return (value) => {
    if (!isMap(value)) throw wrong(value, "a map");
    const found = Object.entries(value);
    if (found.length > max) throw invalid(`a map of ${found.length} keys (at most ${max})`);
    return found.map(([key, item]) => [text()(key), check(item)]);
  };
}

/** A scalar that may stand alone: bool, int, float, text, bin. */
export function scalar(value) {
  if (value === null || Array.isArray(value) || isMap(value)) throw wrong(value, "a scalar");
  return value;
}

const REQUIRED = Symbol("required");

/** A field that has a value if it is absent. It is never nil. */
export const withDefault = (check, absent) => ({ check, absent });

/** A field that may be absent. */
export const optional = (check) => withDefault(check, undefined);

/** A map with these fields; others are skipped. A field that is only a check is required. */
export function record(fields) {
  const all = Object.entries(fields).map(([name, field]) =>
    typeof field === "function" ? [name, { check: field, absent: REQUIRED }] : [name, field],
  );
  return (value) => {
    if (!isMap(value)) throw wrong(value, "a map");
    const made = {};
    for (const [name, { check, absent }] of all) {
      const found = fieldOf(value, name);
      if (found === undefined) {
        if (absent === REQUIRED) throw invalid(`the field ${name} is missing`);
        made[name] = absent;
      } else {
        made[name] = located(check, found, name);
      }
    }
    return made;
  };
}

function located(check, value, name) {
  try {
    return check(value);
  } catch (error) {
    if (error.kind === "invalid" && error.message.length < 300) error.message = `${name}: ${error.message}`;
    throw error;
  }
}

/** What a reader has to know to read a part of a tape. */
export const features = withDefault(array(text(64, 1), MAX_FEATURES), []);
