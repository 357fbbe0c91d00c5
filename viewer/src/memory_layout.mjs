// What the layout of a tensor in memory is called, as `observing/memory_layout.py` of the analyzer
// calls it. Axes of size 1 say nothing of a layout, and neither does a tensor without elements.

const KNOWN = new Map([["0,2,3,1", "channels_last"], ["0,2,3,4,1", "channels_last_3d"]]);

const isSmaller = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

/** The name of the layout of a leaf; torch's layout of one that is not strided. */
export function layoutName(leaf) {
  if (leaf.layout !== "strided") return leaf.layout;
  const shape = leaf.shape.map(BigInt);
  if (shape.includes(0n)) return "contiguous";
  const strides = leaf.strides?.map(BigInt) ?? contiguousStrides(shape, leaf.expanded);
  const sized = [...shape.keys()].filter((axis) => shape[axis] > 1n);
  const same = sized.filter((axis) => leaf.expanded.includes(axis) || strides[axis] === 0n);
  const kept = sized.filter((axis) => !same.includes(axis));
  const words = same.length > 0 ? [`expanded (${same.length === 1 ? "axis" : "axes"} ${same.join(",")})`] : [];
  const pairs = kept.map((axis) => [strides[axis], shape[axis]]);
  if (overlaps(pairs)) return [...words, "overlapping"].join(" and ");
  const rest = [orderInWords(strides, kept, shape.length), isDense(pairs) ? "" : "with gaps"].filter(Boolean).join(" ");
  return [...words, rest].filter(Boolean).join(" and ") || "contiguous";
}

/** The layouts of a tensor for people, by how many calls had them; "" if all were contiguous. */
export function layoutsInWords(layouts) {
  if (layouts.every(([name]) => name === "contiguous")) return "";
  if (layouts.length === 1) return `${layouts[0][0]} in ${layouts[0][1] === 1 ? "the only call" : "all calls"}`;
  return layouts.map(([name, calls], at) => `${name} in ${calls}${at > 0 ? "" : calls === 1 ? " call" : " calls"}`).join(", ");
}

function contiguousStrides(shape, expanded) {
  const strides = [];
  let step = 1n;
  for (const axis of [...shape.keys()].reverse()) {
    strides[axis] = step;
    if (!expanded.includes(axis)) step *= shape[axis];
  }
  return strides;
}

/** The order of the axes that count, if it is not that of their numbers. */
function orderInWords(strides, kept, rank) {
  const order = [...strides.keys()].sort((one, other) => isSmaller(strides[other], strides[one]) || one - other);
  const own = order.filter((axis) => kept.includes(axis)).join();
  if (own === kept.join()) return "";
  for (const [known, name] of KNOWN) {
    const axes = known.split(",").map(Number);
    if (axes.length === rank && axes.filter((axis) => kept.includes(axis)).join() === own) return name;
  }
  return `transposed (stride order ${order.join(",")})`;
}

/** Whether elements with these strides and sizes fill their memory without gaps. */
function isDense(pairs) {
  let expected = 1n;
  for (const [stride, size] of [...pairs].sort(([one], [other]) => isSmaller(one, other))) {
    if (stride !== expected) return false;
    expected *= size;
  }
  return true;
}

/** Whether two elements share memory. Not found are overlaps that need three axes and leave gaps. */
function overlaps(pairs) {
  const count = pairs.reduce((product, [, size]) => product * size, 1n);
  const last = pairs.reduce((sum, [stride, size]) => sum + (size - 1n) * stride, 0n);
  if (count > last + 1n) return true;
  return pairs.some(([one, size], at) => pairs.slice(at + 1).some(([other, others]) => {
    const common = divisor(one, other);
    return other / common < size && one / common < others;
  }));
}

function divisor(one, other) {
  while (other > 0n) [one, other] = [other, one % other];
  return one;
}
