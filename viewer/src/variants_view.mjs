// The variants: calls that one program can serve, in the tables that `calltape variants` prints.
//
// Python finds them. The page has them from `calltape view`, or in itself.

import { element, factList } from "./markup.mjs";
import { TapeError } from "./errors.mjs";

const MOST = 100;

export class VariantsView {
  /** @param given where the tables are: the address of JSON, or what JSON says. */
  constructor(given) {
    this.given = given;
    this.element = element("div", { class: "list padded", tabindex: 0, role: "region", "aria-label": "Variants" });
  }

  async load() {
    const { variants, error } = typeof this.given === "string" ? await asked(this.given) : this.given;
    if (variants === undefined) {
      this.element.replaceChildren(element("p", { role: "status" }, `No variants: ${error}`));
      return;
    }
    const rest = variants.length - MOST;
    this.element.replaceChildren(
      ...(variants.length === 0 ? [element("p", { role: "status" }, "no calls")] : variants.slice(0, MOST).map(section)),
      rest > 0 ? element("p", { class: "quiet" }, `and ${rest} more variants`) : "");
  }
}

async function asked(address) {
  const answer = await fetch(address).catch(() => null);
  if (!answer?.ok) throw new TapeError("io", "`calltape view` does not answer any more; start it again");
  return await answer.json();
}

const section = ({ name, calls, facts, tables, notes }) =>
  element("section", { class: "variant" },
    element("h2", {}, `${name}: ${calls}`),
    facts.length > 0 ? factList(facts) : null,
    ...tables.map(({ head, rows }) => table(head, rows)),
    notes.map(([title, text]) => element("p", { class: "quiet" }, `${title}: ${text}`)));

const table = (head, rows) =>
  element("table", {},
    element("thead", {}, element("tr", {}, head.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell) => element("td", {}, cell))))));
