// Pictures of a dimension: how often it had each size, and how it went over the calls.

import { element, picture } from "./markup.mjs";
import { grouped } from "./numbers.mjs";

const MOST_BARS = 64;
const WIDTH = 600;
const HEIGHT = 160;
const EDGE = 4;

const capital = (word) => word[0].toUpperCase() + word.slice(1);

/**
 * How many calls had each size: a table whose last column is a bar, as long as its share of all calls.
 *
 * @param {string} what is counted: `size`, or `value` of an int.
 */
export function histogram({ values, other }, what) {
  const frequent = [...values].sort((one, two) => two[1] - one[1]).slice(0, MOST_BARS);
  const shown = values.filter((one) => frequent.includes(one));
  const left = values.length - shown.length;
  const all = values.reduce((sum, [, calls]) => sum + calls, other);
  const rows = shown.map(([value, calls]) => {
    const bar = element("div", { class: "fill" });
    bar.style.width = `${(100 * calls) / all}%`;
    return element("tr", {}, element("th", { scope: "row" }, value), element("td", { class: "number" }, grouped(calls)), element("td", { class: "bar-cell" }, bar));
  });
  const head = element("tr", {}, [capital(what), "Calls", "Share"].map((name) => element("th", { scope: "col" }, name)));
  const parts = [element("table", { class: "histogram" }, element("caption", {}, `Calls by ${what}`), element("thead", {}, head), element("tbody", {}, rows))];
  if (left > 0) parts.push(element("p", { class: "quiet" }, `${grouped(left)} ${what}s that fewer calls had are not shown.`));
  if (other > 0) parts.push(element("p", { class: "quiet" }, `${grouped(other)} calls had further ${what}s.`));
  return element("div", {}, parts);
}

/** The size over the calls: for each bin of calls a line from the smallest to the largest size; `what` as above. */
export function series(bins, what) {
  const low = Math.min(...bins.map(({ min }) => min));
  const high = Math.max(...bins.map(({ max }) => max));
  const [first, last] = [bins[0].first, bins.at(-1).last];
  const x = (at) => EDGE + ((WIDTH - 2 * EDGE) * (bins.length === 1 ? 0.5 : at / (bins.length - 1)));
  const y = (value) => HEIGHT - EDGE - ((HEIGHT - 2 * EDGE) * (high === low ? 0.5 : (value - low) / (high - low)));
  const above = bins.map(({ max }, at) => `${x(at)},${y(max)}`);
  const below = bins.map(({ min }, at) => `${x(at)},${y(min)}`);
  const label = `${capital(what)}s from ${low} to ${high} over calls ${first} to ${last}`;
  const drawn = picture("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    picture("polygon", { points: [...above, ...below.reverse()].join(" "), class: "band" }),
    picture("polyline", { points: above.join(" "), class: "line" }));
  return element("figure", {},
    element("div", { class: "chart" }, element("span", { class: "high" }, String(high)), element("span", { class: "low" }, String(low)), drawn),
    element("figcaption", {}, `${label}.`));
}
