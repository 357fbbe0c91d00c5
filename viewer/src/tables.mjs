// Tables: sortable by a button in the head of each column, with only the visible rows in the page.

import { element } from "./markup.mjs";

const ROW_HEIGHT = 34;
const SPARE_ROWS = 12;
// Browsers stop at some height. Beyond this one, a step of the scrollbar is more than a row.
const MOST_HEIGHT = 8_000_000;

/**
 * @param {Array} columns each with `name`, `title`, and perhaps `class` and `isFixed` (not sortable).
 * @param {(row) => Array} cellsOf the contents of the cells of a row, in the order of the columns.
 * @param {(from, to) => Promise<Array>} load gives rows.
 * @param {(row) => void} onOpen a row was chosen; null for rows that cannot be.
 * @param {(sort, isDescending) => Promise} onSort
 */
export class RowTable {
  constructor({ caption, columns, cellsOf, load, onOpen = null, onSort, sort, isDescending = false }) {
    Object.assign(this, { columns, cellsOf, load, onOpen, onSort, sort, isDescending });
    this.count = 0;
    this.active = 0; // the row that has the focus, or gets it
    this.opened = null;
    this.turn = 0;
    this.head = element("tr", { "aria-rowindex": 1 });
    this.body = element("tbody");
    this.table = element("table", {}, element("caption", { class: "hidden" }, caption), element("thead", {}, this.head), this.body);
    this.scroller = element("div", { class: "rows", on: { scroll: () => this.show(), keydown: (event) => this.key(event) } }, this.table);
    this.element = this.scroller;
    new ResizeObserver(() => this.show()).observe(this.scroller);
    this.showHead();
  }

  showHead() {
    this.head.replaceChildren(...this.columns.map((column) => {
      const isSorted = column.name === this.sort;
      const direction = isSorted ? (this.isDescending ? "descending" : "ascending") : "none";
      const arrow = isSorted ? element("span", { "aria-hidden": "true" }, this.isDescending ? " ▼" : " ▲") : null;
      const title = column.isFixed ? column.title
        : element("button", { type: "button", class: "sort", on: { click: () => this.sortBy(column.name) } }, column.title, arrow);
      return element("th", { scope: "col", class: column.class, "aria-sort": column.isFixed ? null : direction }, title);
    }));
  }

  async sortBy(name) {
    this.isDescending = name === this.sort ? !this.isDescending : false;
    this.sort = name;
    this.showHead();
    await this.onSort(name, this.isDescending);
  }

  /** Shows other rows, from the first one on. */
  reset(count) {
    this.count = count;
    this.active = 0;
    this.table.setAttribute("aria-rowcount", count + 1);
    this.scroller.scrollTop = 0;
    this.first = -1;
    return this.show();
  }

  /** How many rows fit, and which is the first visible one. */
  visibleRows() {
    const height = this.scroller.clientHeight;
    const fit = Math.max(1, Math.ceil(height / ROW_HEIGHT));
    const whole = this.count * ROW_HEIGHT;
    if (whole <= MOST_HEIGHT) return { fit, first: Math.floor(this.scroller.scrollTop / ROW_HEIGHT), whole };
    const share = Math.min(1, this.scroller.scrollTop / (MOST_HEIGHT - height));
    return { fit, first: Math.round(share * Math.max(0, this.count - fit + 1)), whole: MOST_HEIGHT };
  }

  async show(isForced = false) {
    const { fit, first, whole } = this.visibleRows();
    const from = Math.max(0, first - SPARE_ROWS);
    const to = Math.min(this.count, first + fit + SPARE_ROWS);
    if (!isForced && from === this.from && to === this.to && this.first !== -1) return;
    this.first = first;
    const turn = ++this.turn;
    let rows;
    try {
      rows = to > from ? await this.load(from, to) : [];
    } catch {
      return; // the page says what is wrong
    }
    if (turn !== this.turn) return;
    Object.assign(this, { from, to });
    const isScaled = this.count * ROW_HEIGHT > MOST_HEIGHT;
    const above = isScaled ? Math.max(0, this.scroller.scrollTop - (first - from) * ROW_HEIGHT) : from * ROW_HEIGHT;
    const below = Math.max(0, whole - above - rows.length * ROW_HEIGHT);
    const hadFocus = this.body.contains(document.activeElement);
    this.body.replaceChildren(
      this.spacer(above), ...rows.map((row, at) => this.rowElement(row, from + at)), this.spacer(below),
    );
    if (rows.length === 0) this.body.append(element("tr", {}, element("td", { class: "none" }, "Nothing to show.")));
    if (hadFocus) this.focusActive();
  }

  spacer(height) {
    const cell = element("td");
    cell.style.height = `${height}px`;
    return element("tr", { class: "spacer", "aria-hidden": "true" }, cell);
  }

  rowElement(row, at) {
    const cells = this.cellsOf(row).map((content, column) => element("td", { class: this.columns[column].class }, content));
    if (this.onOpen !== null) {
      const button = element("button", { type: "button", class: "open", tabindex: at === this.active ? 0 : -1, "aria-current": row.position === this.opened ? "true" : null }, ...cells[0].childNodes);
      cells[0].replaceChildren(button);
    }
    const made = element("tr", { class: row.isBroken ? "broken" : null, "aria-rowindex": at + 2, on: this.onOpen === null ? {} : { click: () => this.open(row, at) } }, cells);
    made.classList.toggle("opened", this.onOpen !== null && row.position === this.opened);
    made.dataset.row = at;
    return made;
  }

  open(row, at) {
    this.active = at;
    this.opened = row.position;
    for (const one of this.body.querySelectorAll("tr")) one.classList.toggle("opened", Number(one.dataset.row) === at && one.dataset.row !== undefined);
    for (const one of this.body.querySelectorAll("button.open")) one.tabIndex = -1;
    const button = this.buttonOf(at);
    if (button !== null) button.tabIndex = 0;
    this.onOpen(row);
  }

  buttonOf(at) {
    return this.body.querySelector(`tr[data-row="${at}"] button.open`);
  }

  focusActive() {
    this.buttonOf(this.active)?.focus({ preventScroll: true });
  }

  async key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (this.onOpen === null || move === undefined || !event.target.classList.contains("open")) return;
    event.preventDefault();
    this.active = Math.max(0, Math.min(this.count - 1, this.active + move));
    await this.scrollTo(this.active);
    for (const one of this.body.querySelectorAll("button.open")) one.tabIndex = -1;
    const button = this.buttonOf(this.active);
    if (button !== null) button.tabIndex = 0;
    this.focusActive();
  }

  async scrollTo(at) {
    const { scroller } = this;
    const room = scroller.clientHeight - 2 * ROW_HEIGHT; // under the head
    if (this.count * ROW_HEIGHT > MOST_HEIGHT) {
      const fit = Math.ceil(scroller.clientHeight / ROW_HEIGHT);
      const { first } = this.visibleRows();
      if (at < first || at >= first + fit - 2) {
        scroller.scrollTop = (Math.max(0, at - 2) / Math.max(1, this.count - fit + 1)) * (MOST_HEIGHT - scroller.clientHeight);
      }
    } else if (at * ROW_HEIGHT < scroller.scrollTop) {
      scroller.scrollTop = at * ROW_HEIGHT;
    } else if (at * ROW_HEIGHT > scroller.scrollTop + room) {
      scroller.scrollTop = at * ROW_HEIGHT - room;
    }
    await this.show();
  }
}

/** A table of rows that are all here: sorts and filters them in the page. */
export class WholeTable {
  /** @param {(row) => string} textOf what a filter looks in. */
  constructor({ rows, textOf, sort, isDescending = false, ...given }) {
    Object.assign(this, { rows, textOf, filter: "" });
    this.table = new RowTable({
      ...given, sort, isDescending,
      load: async (from, to) => this.shown.slice(from, to),
      onSort: () => this.arrange(),
    });
    this.element = this.table.element;
    this.arrange();
  }

  arrange() {
    const { sort, isDescending } = this.table;
    const words = this.filter.toLowerCase().split(/\s+/).filter((word) => word);
    const found = this.rows.filter((row) => words.every((word) => this.textOf(row).toLowerCase().includes(word)));
    const numeric = (value) => (typeof value === "string" && /^-?\d+$/.test(value) ? BigInt(value) : value ?? "");
    found.sort((one, other) => {
      const [a, b] = [numeric(one[sort]), numeric(other[sort])];
      const order = typeof a === typeof b || (typeof a !== "string" && typeof b !== "string") ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "string" ? 1 : -1;
      return isDescending ? -order : order;
    });
    this.shown = found;
    return this.table.reset(found.length);
  }

  setFilter(filter) {
    this.filter = filter;
    return this.arrange();
  }
}

/** A box to filter with. `onFilter` is called a moment after the last key. */
export function filterBox(label, hint, onFilter) {
  let timer = null;
  const input = element("input", {
    type: "search", "aria-label": label, placeholder: hint, autocomplete: "off", spellcheck: "false",
    on: { input: () => {
      clearTimeout(timer);
      timer = setTimeout(() => onFilter(input.value), 200);
    } },
  });
  return input;
}
