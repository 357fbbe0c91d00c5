// The sizes of every dimension, and of every int, over the calls.

import { histogram, series } from "./charts.mjs";
import { element, factList } from "./markup.mjs";
import { layoutsInWords } from "./memory_layout.mjs";
import { WholeTable, filterBox } from "./tables.mjs";
import { grouped } from "./numbers.mjs";

const MOST_SIGNATURES = 100; // in the legend

const COLUMNS = [
  { name: "path", title: "Argument", class: "wide" },
  { name: "axis", title: "Axis", class: "number short slim" },
  { name: "dtype", title: "dtype", class: "dtype" },
  { name: "min", title: "Least", class: "number" },
  { name: "max", title: "Most", class: "number" },
  { name: "distinct", title: "Sizes", class: "number short spare" },
  { name: "calls", title: "Calls", class: "number less" },
  { name: "group", title: "Signature", class: "number short slim" },
];

/** What the numbers of input signatures stand for; nothing if there is one only. */
function legend(groups) {
  if (groups.length < 2) return null;
  const facts = groups.slice(0, MOST_SIGNATURES).map(({ calls, label }, number) => [`Signature ${number}`, `${calls === 1 ? "1 call" : `${grouped(calls)} calls`}, such as ${label}`]);
  const more = groups.length - facts.length;
  if (more > 0) facts.push(["further signatures", grouped(more)]);
  return element("details", { class: "signatures" }, element("summary", {}, "What the input signatures are"), factList(facts));
}

export class DimensionsView {
  constructor(link, onError) {
    Object.assign(this, { link, onError });
    this.element = element("div", { class: "calls" });
  }

  async load() {
    const { rows, groups, broken, rest } = await this.link.ask("dimensionRows");
    this.groups = groups;
    const table = new WholeTable({
      caption: "Dimensions", columns: groups.length > 1 ? COLUMNS : COLUMNS.slice(0, -1), sort: "distinct", isDescending: true,
      rows: rows.map((row, position) => ({ ...row, position })),
      textOf: (row) => `${row.path} ${row.dtype} ${row.distinct > 1 ? "varied" : "constant"} signature ${row.group}`,
      cellsOf: (row) => [
        element("span", { class: "cut" }, row.path), row.axis === null ? "value" : String(row.axis), row.dtype, row.min,
        row.max, `${grouped(row.distinct)}${row.isMore ? "+" : ""}`, grouped(row.calls), ...(groups.length > 1 ? [String(row.group)] : []),
      ],
      onOpen: (row) => this.open(row),
    });
    this.detail = element("section", { class: "detail", tabindex: 0, "aria-label": "The chosen dimension", hidden: true });
    const box = filterBox("Filter dimensions", "name, dtype, varied, constant", (filter) => table.setFilter(filter));
    const told = `${rows.length === 1 ? "1 dimension" : `${grouped(rows.length)} dimensions`} of ${groups.length === 1 ? "1 input signature" : `${grouped(groups.length)} input signatures`}${broken > 0 ? `; ${grouped(broken)} calls cannot be read` : ""}${rest === "0" ? "" : `; ${grouped(rest)} calls with rarer arguments are not among them`}`;
    this.element.replaceChildren(
      element("div", { class: "list" }, element("div", { class: "bar" }, box, element("p", { class: "quiet" }, told)), legend(groups), table.element), this.detail);
  }

  async open(row) {
    try {
      const found = await this.link.ask("dimension", row);
      const { label, calls } = this.groups[row.group];
      const what = row.axis === null ? "value" : "size";
      const layouts = layoutsInWords(found.layouts);
      const title = row.axis === null ? `Values of ${row.path}` : `Axis ${row.axis} of ${row.path}`;
      const close = element("button", { type: "button", class: "close", "aria-label": "Close the dimension", on: { click: () => this.close() } }, "✕");
      this.detail.replaceChildren(element("div", { class: "call" },
        element("header", {}, element("h2", { tabindex: -1 }, title), close),
        element("p", { class: "quiet" }, `Signature ${row.group}, ${grouped(calls)} calls, such as ${label}`),
        layouts === "" ? null : element("p", { class: "quiet" }, `Layout in memory: ${layouts}`),
        found.series === null
          ? element("p", { class: "quiet" }, found.isElsewhere ? "The calls are on other tapes." : "How it went over the calls is known once every record was read.")
          : series(found.series, what),
        histogram(found, what)));
      this.detail.hidden = false;
      this.element.classList.add("with-detail");
      this.detail.scrollTop = 0;
      this.detail.querySelector("h2").focus({ preventScroll: true });
    } catch (error) {
      this.onError(error);
    }
  }

  close() {
    this.detail.hidden = true;
    this.element.classList.remove("with-detail");
  }
}
