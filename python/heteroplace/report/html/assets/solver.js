/* What the solver had at which time, what it compared, and the bound below. */
const drawSolver = (model) => {
  const body = panel("solver");
  body.append(el("p", null, `Made by: ${model.result.origin || "not said"}.`), el("p", null, boundText(model)));
  if (model.progress.length) body.append(convergence(model));
  else body.append(missing(model.missing.progress));
  const candidates = model.result.candidates;
  if (!candidates.length) return;
  const best = Math.min(...candidates.map(([, ns]) => (ns === null ? Infinity : ns)));
  body.append(el("details", null, el("summary", null, `${format.count(candidates.length, "candidate")} compared`), table("What the solver compared", ["candidate", ">simulated", ">of the best"],
    [...candidates].sort((a, b) => (a[1] === null) - (b[1] === null) || a[1] - b[1])
      .map(([name, ns]) => [name, format.ns(ns), ns === null ? "found no plan" : best ? `${(ns / best).toFixed(2)}x` : "-"]))));
};

const convergence = (model) => {
  const width = 1000, height = 240, left = 90, right = 20, top = 16, bottom = 34;
  const points = model.progress;
  const last = Math.max(1, points[points.length - 1][0]);
  const values = points.flatMap(([, , best, bound]) => [best, bound]).filter((ns) => ns);
  if (model.result.bound) values.push(model.result.bound);
  values.push(model.objective);
  // The first plans may be many times worse; they would press the rest flat.
  const low = Math.min(...values) * 0.97, high = Math.min(Math.max(...values), model.objective * 1.8) * 1.03;
  const x = (ns) => left + (ns / last) * (width - left - right);
  const y = (ns) => top + ((high - Math.min(ns, high)) / Math.max(1, high - low)) * (height - top - bottom);
  const line = (pick) => {
    let path = "";
    for (const point of points) {
      if (!point[pick]) continue;
      path += path ? ` H ${x(point[0]).toFixed(1)} V ${y(point[pick]).toFixed(1)}` : `M ${x(point[0]).toFixed(1)} ${y(point[pick]).toFixed(1)}`;
    }
    return path && `${path} H ${width - right}`;
  };
  const best = line(2), bound = line(3);
  return el("figure", { style: "margin: 8px 0" }, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: "width: 100%; background: var(--card)", "aria-label": "Best plan and bound over the time of the solver; the table below has the same" },
    ticks(low, high, 5).map((ns) => [svg("line", { x1: left, x2: width - right, y1: y(ns), y2: y(ns), style: "stroke: var(--line)" }), svg("text", { x: left - 6, y: y(ns) + 4, "text-anchor": "end", class: "soft" }, format.ns(ns))]),
    ticks(0, last, 8).map((ns) => svg("text", { x: x(ns), y: height - 12, "text-anchor": "middle", class: "soft" }, format.ns(ns))),
    best ? svg("path", { d: best, style: "fill: none; stroke: var(--text)", "stroke-width": 2 }) : null,
    bound ? svg("path", { d: bound, style: "fill: none; stroke: var(--accent)", "stroke-width": 2, "stroke-dasharray": "6 4" }) : null),
  el("figcaption", { class: "soft" }, "Solid: the best plan so far. Dashed: the proven bound."),
  el("details", null, el("summary", null, "As a table"), table("Reports of the solver", [">after", "phase", ">best", ">bound"],
    points.slice(0, 300).map(([ns, phase, bestNs, boundNs]) => [format.ns(ns), phase, format.ns(bestNs), boundNs ? format.ns(boundNs) : "-"]))));
};
