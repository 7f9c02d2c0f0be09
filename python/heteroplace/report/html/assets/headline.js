/* How fast, against what, what limits it, how far from the best: sentences and bars. */
const QUIET_CORES = 0.1;
const drawHeadline = (model) => {
  const body = panel("headline");
  drawTimes(model);
  body.append(el("ul", { class: "notes", id: "answers" }, answers(model)
    .map(([id, text]) => el("li", { id: `answer-${id}` }, text))));
  body.append(timeTables(model));
  body.append(el("p", { class: "soft" }, model.sources));
};

const answers = (model) => {
  const found = [["limit", limitText(model)], ["bound", boundText(model)]];
  const accuracy = accuracyText(model);
  found.push(["prediction", accuracy || "Prediction: not checked, because nothing was measured."]);
  return found;
};

const limitText = (model) => {
  if (model.isThroughput) {
    const loads = model.result.loads.map((ns, id) => [ns, model.cluster.resources[id]]).sort((a, b) => b[0] - a[0]);
    const [[most, name], second] = loads;
    const next = second ? `; next is ${second[1]} with ${format.ns(second[0])}` : "";
    return `Limit: ${name}, which each item needs for ${format.ns(most)}${next}.`;
  }
  const shares = model.predicted.shares;
  if (!shares.length) return "Nothing takes any time.";
  const parts = shares.slice(0, 4).map(([name, ns]) =>
    `${name === "" ? "pauses" : name} ${format.share(ns, model.predicted.makespan)}`);
  const [name] = shares.find(([resource]) => resource !== "") || shares[0];
  const kind = model.cluster.channels.includes(name) ? "link channel" : "device";
  return `Limit: the ${kind} ${name}. Critical path: ${parts.join(", ")}.`;
};

const boundText = (model) => {
  const { bound, expected } = model.result;
  if (!bound) return "Bound: unknown.";
  const gap = model.objective - bound;
  const unit = model.isThroughput ? " per item" : "";
  // The bound is of simulated times, so that it is not printed next to expected ones.
  const isExpected = expected && !model.isThroughput;
  if (isExpected) return gap <= 0
    ? "Bound: reached. Without interference no plan is faster."
    : `Bound: without interference, at most ${format.share(gap, model.objective)} can be saved.`;
  if (gap <= 0) return `Bound: reached. No plan takes less than ${format.ns(bound)}${unit}.`;
  return `Bound: no plan takes less than ${format.ns(bound)}${unit} with these costs, `
    + `so at most ${format.ns(gap)}${unit} (${format.share(gap, model.objective)}) can be saved.`;
};

const accuracyText = (model) => {
  const measured = model.measured;
  const own = ownTime(model), ns = own && own.ns;
  if (!ns) return "";
  const { expected, makespan } = model.result;
  const promised = expected ? expected[0] : makespan;
  if (!promised) return "";
  const off = (ns - promised) / promised;
  const size = Math.abs(off);
  const verdict = size <= 0.05 ? "right" : size <= 0.15 ? "about right" : "wrong";
  const side = off < 0 ? "shorter" : "longer";
  const time = measured && (measured.in_turns || measured.time);
  const rounds = time ? ` (${time[4]} ${format.ns(time[2])} to ${format.ns(time[3])})` : " in one run";
  const cores = measured && measured.others_cores;
  const why = cores > QUIET_CORES ? ` Other programs used ${cores.toFixed(1)} cores during the runs.` : "";
  return `Prediction: ${verdict}. Measured ${format.ns(ns)}${rounds}, predicted ${format.ns(promised)}: `
    + `${(100 * size).toFixed(1)} % ${side} than predicted.${why}`;
};
