// The list of calls, and beside it the one that is open.

import { brokenCallView, callView } from "./call_view.mjs";
import { element } from "./markup.mjs";
import { RowTable, filterBox } from "./tables.mjs";
import { grouped } from "./numbers.mjs";

const COLUMNS = [
  { name: "number", title: "Call", class: "number" },
  { name: "inputs", title: "Arguments", class: "wide" },
  { name: "outcome", title: "Outcome", class: "outcome" },
  { name: "duration", title: "Took", class: "number" },
  { name: "time", title: "Began (UTC)", class: "when" },
  { name: "bytes", title: "Tensors", class: "number bytes" },
];

function outcomeOf(row) {
  if (row.isBroken) return element("span", { class: "bad" }, "⚠ corrupted");
  return row.raised ? element("span", { class: "bad" }, "✖ raised") : "✓ returned";
}

export class CallsView {
  /**
   * @param {Link} link
   * @param {(overview) => void} onOverview the list made the reader read all records.
   * @param {(error) => void} onError
   */
  constructor(link, onOverview, onError) {
    Object.assign(this, { link, onOverview, onError, filter: "" });
    this.counted = element("p", { class: "quiet", role: "status" });
    this.table = new RowTable({
      caption: "Calls", columns: COLUMNS, sort: "number",
      cellsOf: (row) => [row.number, element("span", { class: "cut" }, row.inputs), outcomeOf(row), row.duration, row.time, row.bytes],
      load: (from, to) => this.caught(this.link.ask("rows", { from, to })),
      onOpen: (row) => this.open(row),
      onSort: () => this.arrange(),
    });
    this.detail = element("section", { class: "detail", tabindex: 0, "aria-label": "The open call", hidden: true });
    const box = filterBox("Filter calls", "text of the arguments, 10..99, raised", (filter) => {
      this.filter = filter;
      this.arrange();
    });
    this.element = element("div", { class: "calls" },
      element("div", { class: "list" }, element("div", { class: "bar" }, box, this.counted), this.table.element), this.detail);
  }

  async caught(promise) {
    try {
      return await promise;
    } catch (error) {
      this.onError(error);
      throw error;
    }
  }

  async arrange() {
    const { sort, isDescending } = this.table;
    let found;
    try {
      found = await this.caught(this.link.ask("list", { sort, isDescending, filter: this.filter }));
    } catch {
      return;
    }
    this.onOverview(found.overview);
    const searched = found.unknown > 0 ? `; ${grouped(found.unknown)} with too many different arguments were not searched` : "";
    this.counted.textContent = `${grouped(found.count)} ${found.count === 1 ? "call" : "calls"}${searched}`;
    await this.table.reset(found.count);
  }

  async open(row) {
    const close = () => this.close();
    let shown;
    try {
      shown = callView(await this.link.ask("call", { position: row.position }), this.link, close);
    } catch (error) {
      shown = brokenCallView(row.number, error, close);
    }
    this.detail.replaceChildren(shown);
    this.detail.hidden = false;
    this.element.classList.add("with-detail");
    this.detail.scrollTop = 0;
    this.detail.querySelector("h2").focus({ preventScroll: true });
  }

  close() {
    this.detail.hidden = true;
    this.detail.replaceChildren();
    this.element.classList.remove("with-detail");
    this.table.focusActive();
  }
}
