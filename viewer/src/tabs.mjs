// Tabs as the ARIA practices have them: arrows move between them, and the panel follows.

import { element, visible } from "./markup.mjs";

export class Tabs {
  /** @param {Array} tabs each with `name`, `title`, `panel` and `onShow`. */
  constructor(tabs) {
    this.tabs = tabs;
    this.buttons = tabs.map((tab) => element("button", {
      type: "button", role: "tab", id: `tab-${tab.name}`, "aria-controls": `panel-${tab.name}`,
      on: { click: () => this.show(tab.name), keydown: (event) => this.key(event) },
    }, tab.title));
    this.panels = tabs.map((tab) => element("div", { role: "tabpanel", id: `panel-${tab.name}`, "aria-labelledby": `tab-${tab.name}` }, tab.panel));
    this.element = element("div", { class: "tabs" }, element("div", { role: "tablist", "aria-label": "Parts of the tape" }, this.buttons), this.panels);
  }

  show(name) {
    this.tabs.forEach((tab, at) => {
      const isShown = tab.name === name;
      this.buttons[at].setAttribute("aria-selected", String(isShown));
      this.buttons[at].tabIndex = isShown ? 0 : -1;
      this.panels[at].hidden = !isShown;
      if (isShown) tab.onShow?.();
    });
    this.shown = name;
  }

  title(name, title) {
    this.buttons[this.tabs.findIndex((tab) => tab.name === name)].replaceChildren(...visible(title));
  }

  key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    const at = this.tabs.findIndex((tab) => tab.name === this.shown);
    const count = this.tabs.length;
    const next = event.key === "Home" ? 0 : event.key === "End" ? count - 1 : moves[event.key] === undefined ? null : (at + moves[event.key] + count) % count;
    if (next === null) return;
    event.preventDefault();
    this.show(this.tabs[next].name);
    this.buttons[next].focus();
  }
}
