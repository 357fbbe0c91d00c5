// Numbers as text for people.

/** Digits in groups of three: 1 234 567. */
export const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export function bytesText(size) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let value = Number(size);
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} bytes` : `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

/** A duration in nanoseconds. */
export function durationText(nanoseconds) {
  const value = Number(nanoseconds);
  if (Number.isNaN(value)) return "";
  if (value < 1e3) return `${value} ns`;
  if (value < 1e6) return `${(value / 1e3).toPrecision(3)} µs`;
  if (value < 1e9) return `${(value / 1e6).toPrecision(3)} ms`;
  return `${Number((value / 1e9).toPrecision(4))} s`;
}

/** Unix time in nanoseconds, as UTC. */
export function timeText(nanoseconds) {
  const date = new Date(Number(nanoseconds) / 1e6);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().replace("T", " ").replace("Z", "");
}
