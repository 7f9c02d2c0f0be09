/* What is live in each memory over time, against what there is. */
const SMALL_SHARE = 0.05;
const drawMemory = (model) => {
  const body = panel("memory");
  const makespan = Math.max(1, model.predicted.makespan);
  const rows = model.memories.map((memory, id) => {
    const curve = model.memory[id], peak = model.predicted.peak[id];
    const highest = curve.reduce((best, point) => (point[1] > best[1] ? point : best), [0, 0]);
    const use = model.program_memory[id];
    return { memory, curve, peak: peak === undefined ? highest[1] : peak, at: highest[0], use };
  });
  for (const row of rows.filter((one) => one.peak > 0)) {
    const picture = memoryPicture(row, makespan);
    const isSmall = row.peak < row.memory.bytes * SMALL_SHARE;
    body.append(isSmall ? el("details", null, el("summary", null, `${row.memory.name} over time: less than 5 % of the limit`), picture) : picture);
  }
  body.append(table("Peak of the bytes that are live at once, and what the compiled program holds",
  ["memory", ...(model.hosts.length > 1 ? ["host"] : []), ">peak", ">limit", ">share", ">at", ">weights held", ">values held", ">scratch held"],
  rows.map(({ memory, peak, at, use }) => [memory.name, ...(model.hosts.length > 1 ? [memory.host] : []),
    format.bytes(peak), format.bytes(memory.bytes), format.share(peak, memory.bytes), peak ? format.ns(at) : "-",
    ...(use || [null, null, null]).map((bytes) => (bytes === null ? "-" : format.bytes(bytes)))])));
  if (!model.program_memory.length) {
    body.append(missing("This is a plan, so what a compiled program holds is unknown. `heteroplace report MODEL` shows it."));
  }
};

const memoryPicture = ({ memory, curve, peak, at }, makespan) => {
  const width = 1000, height = 150, left = 84, right = 16, top = 18, bottom = 26;
  const isNear = memory.bytes <= peak * 4;
  const most = (isNear ? Math.max(memory.bytes, peak) : peak) * 1.12;
  const x = (ns) => left + (Math.min(ns, makespan) / makespan) * (width - left - right);
  const y = (bytes) => height - bottom - (bytes / most) * (height - top - bottom);
  let path = `M ${x(0)} ${y(0)} L ${x(0)} ${y(curve[0][1])}`;
  for (const [ns, bytes] of curve) path += ` H ${x(ns).toFixed(1)} V ${y(bytes).toFixed(1)}`;
  path += ` H ${x(makespan)} V ${y(0)} Z`;
  const limit = isNear
    ? [svg("line", { x1: left, x2: width - right, y1: y(memory.bytes), y2: y(memory.bytes), style: "stroke: var(--accent)", "stroke-width": 2, "stroke-dasharray": "8 4" }),
      svg("text", { x: width - right - 4, y: y(memory.bytes) - 4, "text-anchor": "end" }, `limit ${format.bytes(memory.bytes)}`)]
    : [svg("text", { x: width - right - 4, y: 13, "text-anchor": "end", class: "soft" },
      `limit ${format.bytes(memory.bytes)}, ${Math.round(memory.bytes / peak).toLocaleString("en")} times the peak: above the picture`)];
  const text = `${memory.name}: at most ${format.bytes(peak)} of ${format.bytes(memory.bytes)}`;
  return el("figure", { style: "margin: 0 0 8px" },
    el("figcaption", null, el("b", null, memory.name), ` peak ${format.bytes(peak)} of ${format.bytes(memory.bytes)} (${format.share(peak, memory.bytes)})`),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text, style: "width: 100%; background: var(--card)" },
      ticks(0, most, 4).map((bytes) => [
        svg("line", { x1: left, x2: width - right, y1: y(bytes), y2: y(bytes), style: "stroke: var(--line)" }),
        svg("text", { x: left - 6, y: y(bytes) + 4, "text-anchor": "end", class: "soft" }, format.bytes(bytes)),
      ]),
      svg("path", { d: path, class: "curve", style: "fill: var(--d0); fill-opacity: 0.55; stroke: var(--text)" }),
      ticks(0, makespan, 8).map((ns) =>
        svg("text", { x: x(ns), y: height - 8, "text-anchor": ns === 0 ? "start" : x(ns) > width - 40 ? "end" : "middle", class: "soft" }, format.ns(ns))),
      limit,
      svg("circle", { cx: x(at), cy: y(curve.reduce((best, point) => Math.max(best, point[1]), 0)), r: 4, style: "fill: var(--accent)" })));
};
