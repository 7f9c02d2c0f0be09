/* Each step predicted beside measured, and on which device the run parted from its prediction. */
const drawAccuracy = (model) => {
  const body = panel("accuracy");
  const { accuracy } = model;
  const sentence = accuracyText(model);
  if (sentence) body.append(el("p", null, sentence));
  if (!accuracy) { body.append(missing(model.missing.measured)); queueTable(model, body); return; }
  const rank = accuracy.rank;
  body.append(el("p", null, rank === null ? "Too few tasks for a rank correlation."
    : `Rank correlation of predicted and measured task times: ${rank.toFixed(2)} (1: in the same order).`));
  const columns = el("div", { class: "side-by-side" }, scatter(model));
  body.append(columns);
  columns.append(table("Work and pauses on each device", ["device", ">tasks", ">work predicted", ">work measured", ">pauses predicted", ">pauses measured", ">lag"],
    accuracy.devices.map(([name, count, ...ns]) => [name, String(count), ...ns.map((value) => format.ns(value)), format.change(ns[1] - ns[0] + ns[3] - ns[2])])));
  const worst = accuracy.step.map((step, i) => [Math.abs(accuracy.measured[i] - accuracy.predicted[i]), i]).sort((a, b) => b[0] - a[0]).slice(0, 12);
  columns.append(table("The steps that differ most", ["step", "where", ">predicted", ">measured", ">difference"], worst.map(([, i]) => {
    const step = accuracy.step[i], kind = model.plan.kind[step];
    const isTask = kind === RUN || kind === COLLECTIVE;
    return [isTask ? taskButton(model, model.plan.subject[step]) : model.stepName(step), isTask ? model.deviceNames(model.plan.subject[step]) : KIND_NAMES[kind],
      format.ns(accuracy.predicted[i]), format.ns(accuracy.measured[i]), format.change(accuracy.measured[i] - accuracy.predicted[i])];
  })));
  queueTable(model, body);
};

const queueTable = (model, body) => {
  const { measured } = model;
  if (!measured || !measured.queues.length) return;
  body.append(table(`How queues spent the time with at most ${format.count(measured.in_flight, "request")} in flight (measured)`,
    ["queue", ">busy", ">waiting", ">nothing to do"],
    measured.queues.map(([name, busy, wait, wall]) => [name, format.share(busy, wall), format.share(wait, wall), format.share(wall - busy - wait, wall)])));
};

const scatter = (model) => {
  const { accuracy } = model, size = 440, edge = 80; // left of the labels there is room for the title of the axis
  const points = accuracy.step.map((step, i) => [accuracy.predicted[i], accuracy.measured[i], step]).filter(([a, b]) => a > 0 && b > 0);
  if (!points.length) return missing("No step has both a predicted and a measured time.");
  const values = points.flatMap(([a, b]) => [a, b]);
  const low = Math.floor(Math.log10(Math.min(...values))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const at = (ns) => ((Math.log10(ns) - low) / (high - low)) * (size - edge - 30);
  const x = (ns) => edge + at(ns), y = (ns) => size - edge - at(ns);
  const marks = [...Array(high - low + 1).keys()].map((i) => 10 ** (low + i));
  const shape = (device, cx, cy) => (device < 0 ? svg("path", { d: `M ${cx} ${cy - 4} l 4 8 h -8 Z` })
    : [svg("circle", { cx, cy, r: 3.5 }), svg("rect", { x: cx - 3.5, y: cy - 3.5, width: 7, height: 7 }),
      svg("path", { d: `M ${cx} ${cy - 5} l 5 5 l -5 5 l -5 -5 Z` })][device % 3]);
  const dots = points.slice(0, 4000).map(([a, b, step]) => {
    const device = model.deviceOf(step), node = shape(device, x(a), y(b));
    fill(node, { style: `fill: var(${colourOf(device)}); stroke: var(--text); stroke-opacity: 0.5; cursor: pointer`, onclick: () => askStep(model, step),
      onpointermove: (event) => tip.show(event, `${model.stepName(step)}\npredicted ${format.ns(a)}, measured ${format.ns(b)}`), onpointerleave: () => tip.hide() }, []);
    return node;
  });
  return el("figure", { style: "margin: 8px 0" }, svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", style: `max-width: ${size}px; width: 100%; background: var(--card)`, "aria-label": "Predicted time of each step against its measured time, both logarithmic; the tables below have the same" },
    marks.map((ns) => [svg("line", { x1: x(ns), x2: x(ns), y1: 16, y2: size - edge, style: "stroke: var(--line)" }), svg("line", { x1: edge, x2: size - 30, y1: y(ns), y2: y(ns), style: "stroke: var(--line)" }),
      svg("text", { x: x(ns), y: size - edge + 22, "text-anchor": "middle", class: "soft" }, format.ns(ns)), svg("text", { x: edge - 6, y: y(ns) + 4, "text-anchor": "end", class: "soft" }, format.ns(ns))]),
    svg("line", { x1: x(10 ** low), y1: y(10 ** low), x2: x(10 ** high), y2: y(10 ** high), style: "stroke: var(--soft)", "stroke-dasharray": "6 4" }),
    svg("text", { x: size / 2 + 20, y: size - 14, "text-anchor": "middle" }, "predicted"), svg("text", { x: 14, y: size / 2 - 20, transform: `rotate(-90 14 ${size / 2 - 20})`, "text-anchor": "middle" }, "measured"), dots),
  el("figcaption", { class: "soft" }, `Above the dashed line a step took longer than predicted.${points.length > 4000 ? " The first 4,000 steps." : ""}`));
};
