// What is wrong with the tape, and the button that looks for more.

import { element } from "./markup.mjs";
import { WholeTable, filterBox } from "./tables.mjs";
import { grouped } from "./numbers.mjs";

const COLUMNS = [
  { name: "kind", title: "Kind", class: "outcome" },
  { name: "reason", title: "What", class: "wide" },
  { name: "member", title: "Member", class: "member" },
  { name: "offset", title: "Byte", class: "number" },
];

export class CorruptionView {
  /** @param {(overview) => void} onOverview everything was compared. */
  constructor(link, onOverview, onError) {
    Object.assign(this, { link, onOverview, onError });
    this.element = element("div", { class: "list" });
  }

  async load(overview) {
    const rows = await this.link.ask("corruption");
    const verify = element("button", { type: "button", on: { click: () => this.verify(verify) } }, "Check every call");
    const told = this.told(overview, rows.length);
    const bar = element("div", { class: "bar" }, verify, element("p", { role: "status" }, told));
    if (rows.length === 0) {
      this.element.replaceChildren(bar);
      return;
    }
    const table = new WholeTable({
      caption: "Corruption", columns: COLUMNS, rows, sort: "offset",
      textOf: (row) => `${row.kind} ${row.reason} ${row.member ?? ""}`,
      cellsOf: (row) => [row.kind, element("span", { class: "cut", title: row.reason }, row.reason), row.member ?? "", row.offset === null ? "" : grouped(row.offset)],
    });
    bar.prepend(filterBox("Filter corruption", "kind, member, text", (filter) => table.setFilter(filter)));
    this.element.replaceChildren(bar, table.element);
  }

  told(overview, count) {
    if (count > 0) return count === 1 ? "1 thing is wrong." : `${grouped(count)} things are wrong.`;
    const unfinished = overview.unfinished > 0 ? ` ${grouped(overview.unfinished)} bytes at the end are a call that was being written.` : "";
    if (!overview.isScanned) return "No corruption was found. The records were not compared yet.";
    return `No corruption was found in the records and arguments.${unfinished} Outputs and tensors are checked when they are read, or all at once with the button.`;
  }

  async verify(button) {
    button.disabled = true;
    try {
      const overview = await this.link.ask("verify");
      this.onOverview(overview);
      await this.load(overview);
      if (overview.corruption === 0) this.element.querySelector("[role=status]").textContent = "Everything on the tape was checked: no corruption.";
    } catch (error) {
      this.onError(error);
    }
  }
}
