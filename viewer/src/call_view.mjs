// One call: its facts, the exception, and the trees of arguments and outputs.

import { element, factList, visibleLines } from "./markup.mjs";
import { treeOf } from "./trees.mjs";

/**
 * @param call as the reader answers it.
 * @param {Link} link
 * @param {() => void} onClose
 */
export function callView(call, link, onClose) {
  const title = element("h2", { tabindex: -1 }, `Call ${call.number}`);
  const close = element("button", { type: "button", class: "close", "aria-label": "Close the call", on: { click: onClose } }, "✕");
  const facts = call.blob === null ? call.facts : [...call.facts, ["tensors", call.blob]];
  const parts = [element("header", {}, title, close), factList(facts)];
  if (call.error !== null) {
    parts.push(element("section", { class: "raised" }, element("h3", {}, `✖ Raised ${call.error.type}`), element("pre", { tabindex: 0 }, visibleLines(call.error.message))));
  }
  parts.push(element("h3", {}, "Arguments"), treeOf(call.inputs, "inputs", link));
  if (call.outputs !== null) parts.push(element("h3", {}, "Outputs"), treeOf(call.outputs, "outputs", link));
  return element("div", { class: "call" }, parts);
}

/** A call that cannot be read. */
export function brokenCallView(number, error, onClose) {
  return element("div", { class: "call" },
    element("header", {}, element("h2", { tabindex: -1 }, `Call ${number}`),
      element("button", { type: "button", class: "close", "aria-label": "Close the call", on: { click: onClose } }, "✕")),
    element("p", { class: "error" }, `${error.kind}: ${error.message}`));
}
