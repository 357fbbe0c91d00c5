// The manifest: which tape, which model, which recorder (FORMAT.md, section 4).

import { Float, isInt, isMap, fieldOf, unpack } from "./documents.mjs";
import { TapeError, damaged, invalid } from "./errors.mjs";
import {
  array, bool, count, expectKnown, features, int, oneOf, optional, record, runs, scalar, seconds, tapeId, text, tuple,
  typeName, withDefault,
} from "./fields.mjs";
import {
  MAX_PARTS, MAX_OUTSIDE, MAX_PARAMETERS, MAX_REASONS, MAX_SOURCES, MAX_STEPS, MIN_INT64,
} from "./limits.mjs";

const VERSION = 1;
const short = text();

const producer = record({
  calltape: short,
  torch: optional(short),
  python: optional(short),
  platform: optional(short),
  transformers: optional(short),
  host: optional(short),
});

const parameter = record({
  name: short,
  kind: oneOf("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"),
  has_default: withDefault(bool, false),
  default: optional(scalar),
  default_missing: withDefault(bool, false),
});

function signature(value) {
  const found = array(parameter, MAX_PARAMETERS)(value);
  if (new Set(found.map((one) => one.name)).size !== found.length) {
    throw invalid("a signature with the same name twice");
  }
  for (const kind of ["VAR_POSITIONAL", "VAR_KEYWORD"]) {
    if (found.filter((one) => one.kind === kind).length > 1) {
      throw invalid(`a signature with two parameters of the kind ${kind}`);
    }
  }
  return found;
}

const target = record({
  type: typeName,
  method: short,
  via: oneOf("hook", "method"),
  signature: optional(signature),
  module: optional(short),
  outside: optional(array(short, MAX_OUTSIDE)),
});

const values = oneOf("all", "none");

function share(value) {
  const found = Number(seconds(value) instanceof Float ? value.value : value);
  if (!(found > 0 && found <= 1)) throw invalid("a share that is not above 0 and at most 1");
  return value;
}


const policy = record({
  outputs: withDefault(bool, true),
  values: withDefault(values, "all"),
  leaf_values: withDefault(array(tuple(short, values), MAX_REASONS), []),
  keep: optional(text(4096)),
  flight_recorder: optional(record({ calls: count, bytes: count })),
  write_ahead: withDefault(bool, false),
  max_calls: optional(count),
  max_seconds: optional(seconds),
  max_share: optional(share),
  max_queue_bytes: optional(count),
  max_disk_bytes: optional(count),
  min_free_bytes: optional(count),
  segment_bytes: optional(count),
  segment_seconds: optional(seconds),
  when_full: optional(oneOf("stop", "delete_oldest")),
});

function fileName(value) {
  if (short(value).includes("/")) throw invalid("the name of a file with a folder");
  return value;
}

const source = record({
  tape: tapeId,
  files: withDefault(array(fileName, 16), []),
  other_files: withDefault(count, 0),
  calls: withDefault(count, 0),
  left_out: optional(count),
  redacted: optional(oneOf("all", "part")),
  host: optional(short),
  parts: optional(runs(MAX_PARTS)),
  first: withDefault(int(MIN_INT64), 0),
});

function sources(value) {
  const found = array(source, MAX_SOURCES)(value);
  if (new Set(found.map((one) => one.tape.join())).size !== found.length) {
    throw invalid("a step that read the same recording twice");
  }
  return found;
}

const step = record({
  verb: short,
  tool: short,
  version: short,
  tape: tapeId,
  options: withDefault(array(tuple(short, short), MAX_STEPS), []),
  sources: withDefault(sources, []),
});

const rankFields = record({ number: count, of: int(2) });

function rank(value) {
  const found = rankFields(value);
  if (found.number >= found.of) throw invalid(`rank ${found.number} of ${found.of}`);
  return found;
}

const manifest = record({
  format: oneOf("calltape"),
  version: int(1),
  minor: withDefault(count, 0),
  tape: tapeId,
  requires: features,
  created_ns: count,
  producer,
  target: optional(target),
  policy: withDefault(policy, policy({})),
  segment: optional(record({ number: withDefault(count, 0), first_call: withDefault(count, 0) })),
  observed: optional(record({ since_ns: count, reason: short })),
  rank: optional(rank),
  history: optional(array(step, MAX_STEPS)),
});

/**
 * The manifest from its document.
 *
 * @throws {TapeError} not_a_tape, version, damaged, invalid or limit
 */
export function manifestOf(payload) {
  const document = unpack(payload);
  if (!isMap(document)) throw damaged("the document of the manifest is no map");
  if (fieldOf(document, "format") !== "calltape") {
    throw new TapeError("not_a_tape", "the manifest does not say that this is a tape of calltape");
  }
  const version = fieldOf(document, "version");
  if (isInt(version) && version > VERSION) {
    throw new TapeError("version", `the tape has format version ${version}; this reader knows ${VERSION}`);
  }
  expectKnown(document, "the tape");
  return manifest(document);
}
