// What a tape says of itself as a whole, as pairs of a name and a text.

import { accounted } from "./endings.mjs";
import { bytesText, grouped, timeText } from "./numbers.mjs";
import { hexText, plainText, scalarText } from "./texts.mjs";

function parameterText(one) {
  const stars = { VAR_POSITIONAL: "*", VAR_KEYWORD: "**" }[one.kind] ?? "";
  const value = one.default_missing ? "…" : scalarText(one.default, 40);
  return `${stars}${one.name}${one.has_default ? `=${value}` : ""}`;
}

/** A signature as Python shows it, with the marks of parameters that are only positions or only keywords. */
export function signatureText(parameters) {
  const parts = [];
  let before;
  for (const one of parameters) {
    if (before === "POSITIONAL_ONLY" && one.kind !== before) parts.push("/");
    if (one.kind === "KEYWORD_ONLY" && before !== "KEYWORD_ONLY" && before !== "VAR_POSITIONAL") parts.push("*");
    parts.push(parameterText(one));
    before = one.kind;
  }
  if (before === "POSITIONAL_ONLY") parts.push("/");
  return `(${parts.join(", ")})`;
}

function targetFacts(target) {
  if (target === undefined) return [["target", "unknown"]];
  const { type, method, module } = target;
  const name = module === undefined ? `${type}.${method}` : `${module}:${method}`;
  const facts = [["target", `${name}, seen by ${target.via}`]];
  if (target.signature !== undefined) {
    facts.push(["signature", signatureText(target.signature).slice(0, 4000)]);
  }
  if (target.outside?.length > 0) facts.push(["reads from outside", target.outside.join(", ").slice(0, 4000)]);
  return facts;
}

const asText = (value) =>
  typeof value === "object" ? JSON.stringify(value, (_, one) => (typeof one === "bigint" ? Number(one) : one.value ?? one)) : String(value);

function policyFacts(policy) {
  return Object.entries(policy)
    .filter(([, value]) => value !== undefined && value !== false && !(Array.isArray(value) && value.length === 0))
    .map(([name, value]) => [`policy: ${name}`, asText(value)]);
}

function stepFacts(step, at) {
  const options = step.options.map(([name, value]) => `${name} ${value}`).join(", ");
  const sources = step.sources.map((one) => `${one.files.join(", ")} (${one.calls} calls)`).join("; ");
  const text = [`${step.verb} by ${step.tool} ${step.version}`, options, sources && `from ${sources}`];
  return [`history ${at + 1}`, text.filter((part) => part).join("; ").slice(0, 4000)];
}

function coverageFacts({ seen, kept, dropped, at_least, counted_ns }) {
  return [
    ["calls seen", `${at_least ? "at least " : ""}${grouped(seen)}`], ["calls kept", grouped(kept)],
    ...dropped.map(([reason, calls]) => [`dropped: ${reason}`, grouped(calls)]),
    ...(counted_ns === undefined ? [] : [["counted until", `${timeText(counted_ns)} UTC`]]),
  ];
}

function deletedFacts(deleted) {
  if (deleted === undefined || deleted.length === 0) return [];
  const runs = deleted.slice(0, 50).map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`));
  return [["files deleted by the recorder", runs.join(", ")]];
}

/** What the recorder had counted when it wrote that last, and what is there now. */
function countsFacts(counts, kept) {
  if (counts === null) return [];
  const { dropped, counted_ns } = counts.coverage;
  const known = accounted({ kept, dropped });
  const seen = known > BigInt(counts.coverage.seen) ? known : BigInt(counts.coverage.seen);
  return [...coverageFacts({ seen, kept, dropped, at_least: true, counted_ns }), ...deletedFacts(counts.deleted)];
}

function endFacts(end) {
  if (end === null) return [];
  // If the recording goes on, more calls were seen than the files so far account for.
  const { coverage, continues, closed_ns } = end;
  return [
    ...coverageFacts(continues ? { ...coverage, at_least: true, counted_ns: coverage.counted_ns ?? closed_ns } : coverage),
    ["closed", `${timeText(closed_ns)} UTC`],
    ...(continues ? [["continues", "the recording goes on in another file"]] : []),
    ...deletedFacts(end.deleted),
    ...(end.elsewhere ? [["elsewhere", "the calls are on other tapes, and none is here"]] : []),
    ...end.dumps.slice(0, 50).map((dump) => [`dump of ${timeText(dump.time_ns)}`, `${dump.reason}: ${grouped(dump.calls)} calls`]),
    ["calls that raised", grouped(end.raised)], ["bytes of tensors", bytesText(end.tensor_bytes)],
    ...(end.first_ns === undefined ? [] : [["first call began", `${timeText(end.first_ns)} UTC`]]),
    ...(end.last_ns === undefined ? [] : [["last call ended", `${timeText(end.last_ns)} UTC`]]),
  ];
}

/** Everything but the calls. */
export function tapeFacts(tape) {
  const { manifest, end } = tape;
  const { producer, segment, observed, rank, history } = manifest;
  return [
    ...targetFacts(manifest.target),
    ["format", `version ${manifest.version}.${manifest.minor}`],
    ["tape", hexText(manifest.tape)],
    ["created", `${timeText(manifest.created_ns)} UTC`],
    ...Object.entries(producer).filter(([, value]) => value !== undefined).map(([name, value]) => [name, value]),
    ...(segment === undefined ? [] : [["file of the recording", `${segment.number}, from call ${segment.first_call}`]]),
    ...(observed === undefined ? [] : [["calls seen since", `${timeText(observed.since_ns)} UTC, ${observed.reason}`]]),
    ...(rank === undefined ? [] : [["rank", `${rank.number} of ${rank.of}`]]),
    ...endFacts(end),
    ...countsFacts(tape.interim, tape.columns.length),
    ...policyFacts(manifest.policy),
    ...(history ?? []).map(stepFacts),
  ].map(([name, value]) => [plainText(name), plainText(value)]);
}
