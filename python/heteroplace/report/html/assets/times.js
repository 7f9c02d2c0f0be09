/* Times of one run as bars: predicted, measured, and other runtimes. An unknown time has no bar, and
   a line says how to measure it. */
const drawTimes = (model) => {
  const box = document.getElementById("times");
  const { result, measured } = model;
  const rows = [{ name: "Predicted", ns: result.expected ? result.expected[0] : result.makespan, kind: "predicted" }];
  const own = ownTime(model);
  if (own) rows.push({ name: "Measured", ns: own.ns, kind: "measured" });
  const peers = measured ? measured.peers : [];
  for (const [name, ns] of peers) rows.push({ name: `${name}, measured`, ns, kind: "peer" });
  const items = result.items === 1 ? "" : ` of ${format.count(result.items, "item")}`;
  box.append(el("h3", null, `One run${items}`), timeBars(rows));
  if (own && own.text) box.append(el("p", { class: "soft" }, own.text));
  if (own) for (const [name, ns, , , , speedup] of peers) {
    const text = speedup === null ? (ns / own.ns).toFixed(2) : speedup.toFixed(2);
    box.append(el("p", null, `Measured: ${text}x as fast as ${name}${speedup === null ? "" : " (median over the rounds)"}.`));
  }
  for (const name of ["time", "onnxruntime"]) {
    if (model.missing[name]) box.append(missing(model.missing[name]));
  }
};

/* The measured time of the plan: in the turns with its peers, else of its own runs, else of the run
   whose steps were measured. */
const ownTime = ({ measured, measuredRun }) => {
  const time = measured && (measured.in_turns || measured.time);
  if (!time && !(measuredRun && measuredRun.makespan)) return null;
  if (!time) return { ns: measuredRun.makespan, text: "Measured is one run." };
  const [, ns, low, high, of] = time;
  return { ns, text: `Measured is the median of ${of}, from ${format.ns(low)} to ${format.ns(high)}.` };
};

/* rows: {name, ns, kind}. A predicted bar is hatched, so that no colour is needed to tell it. */
const timeBars = (rows) => {
  const most = Math.max(1, ...rows.map((row) => row.ns));
  return el("ul", { class: "times" }, rows.map(({ name, ns, kind }) => el("li", { class: kind },
    el("span", { class: "name" }, name),
    el("span", { class: "track", "aria-hidden": "true" },
      el("span", { class: "fill", style: `width:${((100 * ns) / most).toFixed(2)}%` })),
    el("b", { class: "value" }, format.ns(ns)))));
};

/* The other times, predicted ones apart from measured ones. */
const timeTables = (model) => {
  const { result, measured } = model;
  const unit = model.isThroughput ? " per item" : "";
  const isExpected = result.expected && !model.isThroughput;
  const base = isExpected ? result.expected[0] : model.objective;
  const row = (name, ns, own) => [name, format.ns(ns), own ? (ns / own).toFixed(2) : "-"];
  const rows = [row("this plan", base, base), ...result.singles.map(([name, ns]) => row(`all on ${name}`, ns, base))];
  // The bound is of simulated times, and not of expected ones.
  if (result.bound && !isExpected) rows.push(row("lower bound (proven)", result.bound, base));
  const tables = [table(`Predicted times${unit}`, ["plan", ">time", ">this plan = 1"], rows)];
  const own = ownTime(model);
  if (own && measured.peers.length) {
    tables.push(table("Measured times of a run", ["program", ">time", ">this plan = 1"],
      [row("this plan", own.ns, own.ns), ...measured.peers.map(([name, ns]) => row(name, ns, own.ns))]));
  }
  return el("div", { class: "side-by-side" }, tables);
};
