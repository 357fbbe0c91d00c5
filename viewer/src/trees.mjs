// The tree of arguments or outputs: nodes that open, with the values of tensors on demand.

import { element, factList } from "./markup.mjs";
import { ValuesView } from "./values.mjs";

const MOST_AT_ONCE = 100;
const OPENED_DEPTH = 1;

/**
 * A tree.
 *
 * @param node as descriptions.mjs makes it.
 * @param {"inputs"|"outputs"} side
 * @param {Link} link
 */
export const treeOf = (node, side, link) => element("div", { class: "tree" }, nodeOf(node, side, link, 0));

function headOf(node) {
  return [
    element("span", { class: "name" }, node.name), " ",
    node.type === undefined ? null : element("span", { class: "type" }, node.type), " ",
    element("span", { class: `text ${node.leaf === undefined ? "" : "leaf"}` }, node.text),
    node.beside === undefined ? null : element("span", { class: "quiet" }, ` beside: ${node.beside.join(", ")}`),
  ].filter((part) => part !== null);
}

function nodeOf(node, side, link, depth) {
  const hasInside = (node.children?.length ?? 0) > 0 || node.leaf !== undefined;
  if (!hasInside) return element("div", { class: "node" }, headOf(node));
  const inside = element("div", { class: "inside" });
  const made = element("details", { class: "node" }, element("summary", {}, headOf(node)), inside);
  let isFilled = false;
  const fill = () => {
    if (isFilled || !made.open) return;
    isFilled = true;
    if (node.leaf === undefined) showChildren(node.children, 0, inside, side, link, depth);
    else inside.append(...leafParts(node, side, link));
  };
  made.addEventListener("toggle", fill);
  if (depth < OPENED_DEPTH && node.leaf === undefined) {
    made.open = true;
    fill();
  }
  return made;
}

function showChildren(children, from, inside, side, link, depth) {
  const to = Math.min(children.length, from + MOST_AT_ONCE);
  inside.append(...children.slice(from, to).map((child) => nodeOf(child, side, link, depth + 1)));
  if (to === children.length) return;
  const more = element("button", { type: "button", on: { click: () => {
    more.remove();
    showChildren(children, to, inside, side, link, depth);
  } } }, `Show more (${children.length - to})`);
  inside.append(more);
}

function leafParts(node, side, link) {
  const parts = node.facts.length > 0 ? [factList(node.facts)] : [];
  if (!node.hasValue) return [...parts, element("p", { class: "quiet" }, "Its value is not on the tape.")];
  return [...parts, new ValuesView(link, side, node.leaf, `${node.name}: ${node.text}`).element];
}
