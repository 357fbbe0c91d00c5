"use strict";
// Heads become buttons that sort; details open for printing. Without this script the page is whole.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  if (table.tBodies[0].rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(table, heads, column));
    head.replaceChildren(button);
  });
}
function sort(table, heads, column) {
  const isDown = heads[column].getAttribute("aria-sort") === "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const value = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    const x = value(a), y = value(b);
    if (typeof x === "number" && typeof y === "number") return x - y;
    return typeof x === typeof y ? x.localeCompare(y, undefined, {numeric: true}) : typeof x === "number" ? -1 : 1;
  };
  const rows = [...table.tBodies[0].rows].sort(compare);
  table.tBodies[0].replaceChildren(...(isDown ? rows.reverse() : rows));
}
const opened = [];
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not([open])")) {
    one.open = true;
    opened.push(one);
  }
});
addEventListener("afterprint", () => {
  for (const one of opened.splice(0)) one.open = false;
});
