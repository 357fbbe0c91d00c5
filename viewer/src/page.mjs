// The page: a place to drop a tape, and what is on it.

import { CallsView } from "./calls_view.mjs";
import { CorruptionView } from "./corruption_view.mjs";
import { DimensionsView } from "./dimensions_view.mjs";
import { embeddedTapes } from "./embedded.mjs";
import { Link } from "./link.mjs";
import { breakable, element, factList, visible } from "./markup.mjs";
import { Tabs } from "./tabs.mjs";
import { VariantsView } from "./variants_view.mjs";
import { bytesText, grouped } from "./numbers.mjs";

class Page {
  constructor(root) {
    this.link = null;
    this.picker = element("input", { type: "file", id: "picker", class: "hidden", on: { change: () => this.openFile(this.picker.files[0]) } });
    const pick = element("label", { for: "picker", class: "button" }, "Open a tape");
    this.stop = element("button", { type: "button", on: { click: () => this.cancel() } }, "Stop");
    this.bar = element("progress", { max: 1, "aria-label": "Progress" });
    this.work = element("span");
    this.progress = element("div", { class: "progress", hidden: true }, this.work, this.bar, this.stop);
    this.message = element("p", { class: "message", role: "alert" });
    this.about = element("div", { class: "about" });
    this.main = element("main", {});
    root.replaceChildren(
      element("header", { class: "top" }, element("h1", {}, "calltape viewer"), this.about, pick, this.picker),
      this.progress, this.message, this.main);
    this.welcome([]);
    this.acceptDrops();
  }

  acceptDrops() {
    const mark = (isOver) => document.body.classList.toggle("over", isOver);
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      mark(true);
    });
    document.addEventListener("dragleave", (event) => mark(event.relatedTarget !== null));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      mark(false);
      this.openFile(event.dataTransfer.files[0]);
    });
  }

  /** @param {Array} tapes that the page or its server has: `name`, `size`, and `file` or `url`. */
  welcome(tapes) {
    const given = tapes.map((tape) =>
      element("li", {}, element("button", { type: "button", class: "link", on: { click: () => this.open(tape) } }, tape.name), element("span", { class: "quiet" }, ` ${bytesText(tape.size)}`)));
    this.main.replaceChildren(element("div", { class: "welcome" },
      given.length > 0 ? [element("h2", {}, "Tapes"), element("ul", {}, given)] : [],
      element("p", { class: "drop" }, "Drop a tape here: a .tape or .tape.gz file."),
      element("p", { class: "quiet" }, "It is read in this page. Nothing of it is sent anywhere.")));
  }

  openFile(file) {
    this.picker.value = "";
    if (file !== undefined) this.open({ file, name: file.name });
  }

  async open({ variants, ...given }) {
    this.link?.end();
    const link = new Link((progress) => this.link === link && this.showProgress(progress));
    this.link = link;
    this.message.textContent = "";
    this.about.replaceChildren();
    this.main.replaceChildren();
    this.showProgress({ what: `opening ${given.name}`, done: 0, total: null });
    try {
      const overview = await link.ask("open", given);
      if (this.link === link) await this.show(overview, link, variants);
    } catch (error) {
      if (this.link === link) this.refuse(given.name, error);
    }
  }

  refuse(name, error) {
    this.welcome(this.tapes ?? []);
    const words = { not_a_tape: "is no tape", version: "is of a newer format", damaged: "is corrupted", invalid: "breaks the format", limit: "exceeds a limit" };
    this.fail(error, `${name} ${words[error.kind] ?? "cannot be read"}: `);
  }

  fail(error, before = "") {
    this.message.replaceChildren(...visible(`${before}${error.message}`));
  }

  /** @param variants where the tables of the variants are; undefined of a tape that was dropped. */
  async show(overview, link, variants) {
    // A thread that was ended, because another tape is open, has nothing to say any more.
    const onError = (error) => this.link === link && this.fail(error);
    const onOverview = (found) => this.link === link && this.update(found);
    this.calls = new CallsView(link, onOverview, onError);
    this.dimensions = new DimensionsView(link, onError);
    this.variants = variants === undefined ? null : new VariantsView(variants);
    this.corruption = new CorruptionView(link, onOverview, onError);
    this.facts = element("div", { class: "list padded", tabindex: 0, role: "region", "aria-label": "Facts of the tape" });
    this.tabs = new Tabs([
      { name: "calls", title: "Calls", panel: this.calls.element },
      ...(this.variants === null ? [] : [{ name: "variants", title: "Variants", panel: this.variants.element, onShow: () => this.loadOnce("variants", this.variants) }]),
      { name: "dimensions", title: "Dimensions", panel: this.dimensions.element, onShow: () => this.loadOnce("dimensions", this.dimensions) },
      { name: "corruption", title: "Corruption", panel: this.corruption.element, onShow: () => this.corruption.load(this.overview).catch(onError) },
      { name: "tape", title: "Tape", panel: this.facts },
    ]);
    this.notice = element("div", { class: "notice", hidden: true });
    this.main.replaceChildren(this.notice, this.tabs.element);
    this.overview = null;
    this.tabs.show("calls");
    this.update(overview);
    await this.calls.arrange();
  }

  loadOnce(name, view) {
    if (this.loaded.has(name)) return;
    this.loaded.add(name);
    const { link } = this;
    view.load().catch((error) => this.link === link && this.fail(error));
  }

  /** Shows what is known of the tape now. */
  update(overview) {
    const isNew = this.overview === null || this.overview.isScanned !== overview.isScanned;
    this.overview = overview;
    if (isNew) this.loaded = new Set();
    if (isNew && this.tabs.shown === "dimensions") this.loadOnce("dimensions", this.dimensions);
    const state = overview.isSealed ? "sealed" : "unsealed";
    this.about.replaceChildren(
      element("strong", {}, overview.name), element("span", { class: "quiet" }, ` ${overview.size}, ${grouped(overview.calls)} ${overview.calls === 1 ? "call" : "calls"}, ${state}`),
      overview.target === null ? "" : element("span", { class: "target" }, ...breakable(overview.target)));
    this.tabs.title("corruption", overview.corruption > 0 ? `Corruption (${grouped(overview.corruption)}) ⚠` : "Corruption");
    this.facts.replaceChildren(factList(overview.facts));
    this.notice.hidden = overview.isScanned;
    if (!overview.isScanned) {
      this.notice.replaceChildren(
        element("span", {}, "Opened from its end: the records were not compared yet. Sorting, searching and the course over the calls read them all. "),
        element("button", { type: "button", on: { click: () => this.scan() } }, "Read every record"));
    }
  }

  async scan() {
    const { link } = this;
    this.showProgress({ what: "reading every record", done: 0, total: null });
    try {
      this.update(await link.ask("scan"));
      await this.calls.arrange();
    } catch (error) {
      if (this.link === link) this.fail(error);
    }
  }

  showProgress(progress) {
    this.progress.hidden = progress === null;
    if (progress === null) return;
    const { what, done, total } = progress;
    const share = total === null ? "" : ` ${Math.floor((100 * done) / Math.max(1, total))}%`;
    this.work.replaceChildren(...visible(`${what}${share}`));
    if (total === null) this.bar.removeAttribute("value");
    else this.bar.value = done / Math.max(1, total);
  }

  cancel() {
    this.link?.end();
    this.link = null;
    this.progress.hidden = true;
    this.welcome(this.tapes ?? []);
  }

  /** Shows the tapes in the page, or those of `calltape view`, which serves the page below this path. */
  async findTapes() {
    this.tapes = embeddedTapes(document);
    if (location.pathname.endsWith("/view/")) {
      const answer = await fetch("tapes.json").catch(() => null);
      if (!answer?.ok) return;
      // The thread that reads has another address than the page.
      this.tapes = (await answer.json()).map((tape) => ({ ...tape, url: new URL(tape.url, location.href).href }));
    }
    if (this.tapes.length === 1) await this.open(this.tapes[0]);
    else this.welcome(this.tapes);
  }
}

new Page(document.getElementById("page")).findTapes();
