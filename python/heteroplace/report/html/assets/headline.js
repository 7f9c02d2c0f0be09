/* How fast, against what, what limits it, how far from the best: sentences and bars. */
const drawHeadline = (model) => {
  const body = panel("headline");
  body.append(el("ul", { class: "notes", id: "answers" }, answers(model)
    .map(([id, text]) => el("li", { id: `answer-${id}` }, text))));
  body.append(bars(model));
  body.append(el("p", { class: "soft" }, model.sources));
};

const answers = (model) => {
  const found = [["limit", limitText(model)], ["bound", boundText(model)]];
  const accuracy = accuracyText(model);
  found.push(["prediction", accuracy || "Whether the prediction is right is not known: nothing was measured."]);
  return found;
};

const limitText = (model) => {
  if (model.isThroughput) {
    const loads = model.result.loads.map((ns, id) => [ns, model.cluster.resources[id]]).sort((a, b) => b[0] - a[0]);
    const [[most, name], second] = loads;
    const next = second ? `; next is ${second[1]} with ${format.ns(second[0])}` : "";
    return `What limits the throughput: ${name}, which each item needs for ${format.ns(most)}${next}.`;
  }
  const shares = model.predicted.shares;
  if (!shares.length) return "Nothing takes any time.";
  const parts = shares.slice(0, 4).map(([name, ns]) =>
    `${name === "" ? "pauses" : name} ${format.share(ns, model.predicted.makespan)}`);
  const [name] = shares.find(([resource]) => resource !== "") || shares[0];
  const kind = model.cluster.channels.includes(name) ? "link channel" : "device";
  return `What limits the makespan: the ${kind} ${name}. The critical path is ${parts.join(", ")}.`;
};

const boundText = (model) => {
  const { bound, expected } = model.result;
  if (!bound) return "How far from the bound: no bound is known.";
  const gap = model.objective - bound;
  const unit = model.isThroughput ? " per item" : "";
  // The bound is of simulated times, so that it is not printed next to expected ones.
  const isExpected = expected && !model.isThroughput;
  if (isExpected) return gap <= 0
    ? "How far from the bound: not at all, without interference no plan is faster."
    : `How far from the bound: at most ${format.share(gap, model.objective)} could be saved, without interference.`;
  if (gap <= 0) return `How far from the bound: not at all, ${format.ns(bound)}${unit} is proven to be the least.`;
  return `How far from the bound: at most ${format.ns(gap)}${unit} (${format.share(gap, model.objective)}) `
    + `could be saved; no plan takes less than ${format.ns(bound)}${unit} by these costs.`;
};

const accuracyText = (model) => {
  const measured = model.measured;
  const ns = measured && measured.time ? measured.time[1] : model.measuredRun && model.measuredRun.makespan;
  if (!ns) return "";
  const { expected, makespan } = model.result;
  const promised = expected ? expected[0] : makespan;
  if (!promised) return "";
  const off = (ns - promised) / promised;
  const size = Math.abs(off);
  const verdict = size <= 0.05 ? "yes" : size <= 0.15 ? "about" : "no";
  const side = off < 0 ? "shorter" : "longer";
  const time = measured && measured.time;
  const rounds = time ? ` (${time[4]} ${format.ns(time[2])} to ${format.ns(time[3])})` : " in one run";
  return `Was the prediction right: ${verdict}. Predicted ${format.ns(promised)}, measured ${format.ns(ns)}${rounds}: `
    + `measured ${(100 * size).toFixed(1)} % ${side} than predicted.`;
};

const bars = (model) => {
  const { result, measured } = model;
  // What was minimised is told per item in a steady state; a run, as it is measured, has no other items beside its own.
  const item = model.isThroughput ? " per item" : "";
  const run = model.isThroughput ? `, a run of ${result.items === 1 ? "one item" : format.count(result.items, "item")}` : "";
  const own = measured && measured.time ? measured.time[1] : null;
  // Either all predicted times are expected ones, or all are simulated ones, and only then the bound is of their kind.
  const isExpected = result.expected && !model.isThroughput;
  const predicted = isExpected ? result.expected[0] : model.objective;
  const rows = [["this plan", "predicted", predicted, item, predicted, "own"]];
  if (own !== null) rows.push(["this plan", "measured", own, run, own, "own"]);
  for (const [name, ns] of result.singles) rows.push([`all on ${name}`, "predicted", ns, item, predicted, ""]);
  for (const [name, ns] of measured ? measured.peers : []) rows.push([name, "measured", ns, run, own, ""]);
  if (result.bound && !isExpected) rows.push(["lower bound", "proven", result.bound, item, model.objective, "bound"]);
  const most = Math.max(1, ...rows.map((row) => row[2]));
  const cells = rows.map(([name, how, ns, unit, base, kind]) => [name, how, format.ns(ns) + unit,
    base ? `${(ns / base).toFixed(2)}x` : "-",
    el("div", { class: "meter", "aria-hidden": "true" },
      el("div", { class: kind || null, style: `width:${((100 * ns) / most).toFixed(2)}%` }))]);
  return table("Times, and how many times the plan's own (predicted beside predicted, measured beside measured)",
    ["what", "how it is known", ">time", ">of this plan", "as a bar"], cells, { class: "bars" });
};
