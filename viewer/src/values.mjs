// The elements of a tensor, page by page.

import { element, factList } from "./markup.mjs";
import { grouped } from "./numbers.mjs";

const PAGE = 240;
const PER_ROW = 8;

/** The logical index of an element, by its place: `[0, 3, 16]`. */
function indexText(place, shape) {
  const index = [];
  let rest = place;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    index.unshift(rest % shape[axis]);
    rest = Math.floor(rest / shape[axis]);
  }
  return `[${index.join(", ")}]`;
}

/** Rows of elements: none goes over the end of the last axis. */
function* rowsOf({ from, texts, shape }) {
  const width = Math.max(1, shape.at(-1) ?? 1);
  for (let at = 0; at < texts.length; ) {
    const column = (from + at) % width;
    const length = Math.min(PER_ROW, width - column, texts.length - at);
    yield { place: from + at, texts: texts.slice(at, at + length) };
    at += length;
  }
}

/** Which elements are shown: `1 element`, `0 to 239 of 400 elements`. */
export function rangeText(from, count, total) {
  if (count === total) return total === 1 ? "1 element" : `${grouped(total)} elements`;
  const shown = count === 1 ? grouped(from) : `${grouped(from)} to ${grouped(from + count - 1)}`;
  return `${shown} of ${grouped(total)} elements`;
}

export class ValuesView {
  constructor(link, side, leaf, title) {
    Object.assign(this, { link, side, leaf, title, from: 0, total: null });
    this.body = element("div", { "aria-live": "polite" });
    this.bar = element("div", { class: "bar" });
    this.element = element("div", { class: "values" }, this.bar, this.body);
    this.load(0);
  }

  async load(from) {
    this.element.setAttribute("aria-busy", "true");
    try {
      const found = await this.link.ask("elements", { side: this.side, leaf: this.leaf, from, count: PAGE });
      Object.assign(this, { from, total: found.total });
      this.show(found);
    } catch (error) {
      this.body.replaceChildren(element("p", { class: "error" }, `${error.kind}: ${error.message}`));
    }
    this.element.removeAttribute("aria-busy");
  }

  show(found) {
    if (found.total === 0) {
      this.body.replaceChildren(element("p", { class: "quiet" }, "It has no elements."));
      return;
    }
    const rows = [...rowsOf(found)].map(({ place, texts }) =>
      element("tr", {}, element("th", { scope: "row" }, indexText(place, found.shape)), texts.map((text) => element("td", {}, text))));
    const caption = `${this.title}, elements ${grouped(found.from)} to ${grouped(found.from + found.texts.length - 1)}`;
    const table = element("table", {}, element("caption", { class: "hidden" }, caption), element("tbody", {}, rows));
    this.body.replaceChildren(element("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": caption }, table));
    this.showBar(found);
  }

  showBar({ from, total, texts }) {
    const step = (name, label, to, isOff) => element("button", {
      type: "button", "aria-label": label, disabled: isOff, on: { click: () => this.load(to) },
    }, name);
    const last = Math.floor((total - 1) / PAGE) * PAGE;
    const pages = total <= PAGE ? [] : [
      step("«", "First page", 0, from === 0), step("‹", "Page before", Math.max(0, from - PAGE), from === 0),
      step("›", "Next page", Math.min(last, from + PAGE), from >= last), step("»", "Last page", last, from >= last),
      this.jumpBox(total),
    ];
    const shown = element("span", { class: "quiet" }, rangeText(from, texts.length, total));
    const whole = element("button", { type: "button", on: { click: (event) => this.statistics(event.target) } }, "Whole tensor");
    this.bar.replaceChildren(...pages, shown, whole);
  }

  jumpBox(total) {
    return element("input", {
      type: "text", class: "jump", "aria-label": "Go to element number", placeholder: "element",
      on: { keydown: ({ key, target }) => {
        if (key !== "Enter" || !/^\d+$/.test(target.value)) return;
        this.load(Math.floor(Math.min(Number(target.value), total - 1) / PAGE) * PAGE);
      } },
    });
  }

  async statistics(button) {
    button.disabled = true;
    try {
      const facts = await this.link.ask("statistics", { side: this.side, leaf: this.leaf });
      button.replaceWith(factList(facts));
    } catch (error) {
      button.replaceWith(element("p", { class: "error" }, `${error.kind}: ${error.message}`));
    }
  }
}
