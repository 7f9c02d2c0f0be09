/* Time, speed and share of the peak of each op type. A fused task counts as its heaviest op. */
const MAX_OP_ROWS = 15;

const drawOps = (model) => {
  const body = panel("ops");
  const run = model.measuredRun || model.predicted;
  const rows = opRows(model, run);
  const total = rows.reduce((sum, row) => sum + row.ns, 0);
  const unknown = [...new Set(rows.flatMap((row) => [...row.unknown]))];
  const hasPeaks = !unknown.length && rows.some((row) => row.flops);
  const shown = rows.slice(0, MAX_OP_ROWS);
  body.append(table(`${capital(run.label)} time, summed over devices and links. A fused task counts as its heaviest op`,
    ["op type", ">tasks", ">time", ">share", ">GFLOP/s", ...(hasPeaks ? [">of peak"] : [])],
    shown.map((row) => [row.name, String(row.count), format.ns(row.ns), format.share(row.ns, total),
      row.flops && row.ns ? significant(row.flops / row.ns) : "-",
      ...(hasPeaks ? [row.flops && row.possible ? format.share(row.flops, row.possible) : "-"] : [])])));
  const rest = rows.slice(MAX_OP_ROWS);
  if (rest.length) body.append(el("p", { class: "soft" }, `${format.count(rest.length, "more op type")}: ${format.ns(rest.reduce((sum, row) => sum + row.ns, 0))}`));
  if (hasPeaks) body.append(el("p", { class: "soft" }, peakText(model)));
  else if (unknown.length) body.append(missing(`The share of the peak is left out, because the peak of ${unknown.map((id) => model.devices[id].name).join(", ")} is unknown. ${model.missing.peak}`));
  else body.append(missing("The share of the peak is left out, because the graph does not say how many operations its tasks need."));
};

/* {name, count, ns, flops, possible: operations at the peak, unknown: devices without a peak}. */
const opRows = (model, run) => {
  const byName = new Map();
  const row = (name) => {
    if (!byName.has(name)) byName.set(name, { name, tasks: new Set(), ns: 0, flops: 0, possible: 0, unknown: new Set() });
    return byName.get(name);
  };
  run.step.forEach((step, span) => {
    if (run.spanOf.get(step) !== span) return; // a step on several lanes counts once
    const kind = model.plan.kind[step], ns = run.length[span];
    const isTask = kind === RUN || kind === COLLECTIVE;
    const one = row(isTask ? model.opType(model.plan.subject[step]) : KIND_NAMES[kind]);
    one.ns += ns;
    one.tasks.add(isTask ? model.plan.subject[step] : step);
    if (kind !== RUN) return;
    const device = model.plan.place[step], flops = model.tasks.flops[model.plan.subject[step]];
    one.flops += flops * Math.max(1, model.items(step).length);
    if (!flops) return;
    if (model.peaks[device]) one.possible += (ns * model.peaks[device]) / 1e9;
    else one.unknown.add(device);
  });
  return [...byName.values()].map((one) => ({ ...one, count: one.tasks.size }))
    .sort((a, b) => b.ns - a.ns || (a.name < b.name ? -1 : 1));
};

const peakText = (model) => {
  const used = model.devices.filter((device) => model.result.used.includes(device.name) && model.peaks[device.id]);
  return `Peak: ${used.map((device) => `${device.name} ${significant(model.peaks[device.id] / 1e9)} GFLOP/s`).join(", ")}.`;
};
