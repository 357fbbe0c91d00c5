// Elements of the page. Text gets into it as text only, and every character of it can be seen.

// Controls, what turns the direction of text, what has no width, separators of lines, tags,
// surrogates without their other half, and characters of private use.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f]/u;
const SPLIT = new RegExp(`(${INVISIBLE.source})`, "u");
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** What stands for an invisible character: its escape, or its number. Few fonts have pictures for it. */
function pictureOf(character) {
  const code = character.codePointAt(0);
  if (code < 32) return ESCAPES[character] ?? `\\x${code.toString(16).padStart(2, "0")}`;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Nodes for a text of a tape, in which each invisible character is shown as one that can be seen. */
export function visible(text) {
  return text.split(SPLIT).filter((part) => part !== "").map((part) => {
    if (!INVISIBLE.test(part)) return document.createTextNode(part);
    const shown = document.createElement("span");
    shown.className = "control";
    shown.textContent = pictureOf(part);
    return shown;
  });
}

/** The same as plain text, for attributes. */
export const visibleText = (text) =>
  text.split(SPLIT).map((part) => (part !== "" && INVISIBLE.test(part) ? pictureOf(part) : part)).join("");

const ATTRIBUTES = new Set([
  "aria-busy", "aria-controls", "aria-current", "aria-expanded", "aria-hidden", "aria-label", "aria-labelledby",
  "aria-live", "aria-rowcount", "aria-rowindex", "aria-selected", "aria-sort", "colspan", "for", "hidden", "id",
  "max", "placeholder", "role", "scope", "tabindex", "title", "type", "value", "multiple", "accept",
  "viewBox", "points", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "disabled", "autocomplete", "spellcheck",
  "preserveAspectRatio",
]);

function put(made, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.setAttribute("class", value);
    else if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (ATTRIBUTES.has(name)) made.setAttribute(name, value === true ? "" : visibleText(String(value)));
    else throw new Error(`an element has no attribute ${name} here`);
  }
  made.append(...children.flat().flatMap((child) => (typeof child === "string" ? visible(child) : child ?? [])));
  return made;
}

/** Parts of a long name, which a line may break after a dot or a colon. */
export const breakable = (name) =>
  name.split(/(?<=[.:])/u).flatMap((part, at) => (at > 0 ? [document.createElement("wbr"), part] : [part]));

/** A text of several lines, each of them visible. */
export const visibleLines = (text) =>
  text.split("\n").flatMap((line, at) => [...(at > 0 ? [document.createTextNode("\n")] : []), ...visible(line)]);

/** An element. `given` has attributes (a few are allowed), `class`, and event handlers in `on`. */
export const element = (tag, given = {}, ...children) => put(document.createElement(tag), given, children);

/** The same for a picture. */
export const picture = (tag, given = {}, ...children) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), given, children);

/** A list of names with texts. */
export const factList = (facts) =>
  element("dl", { class: "facts" }, facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
