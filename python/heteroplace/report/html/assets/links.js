/* What goes over each link and channel, and between which memories. */
const MAX_PLACES = 40;

const drawLinks = (model) => {
  const body = panel("links");
  const run = model.predicted, critical = new Map(run.shares);
  const traffic = model.cluster.channels.map(() => ({ copies: 0, bytes: 0, ns: 0 }));
  const between = new Map();
  model.plan.kind.forEach((kind, step) => {
    const span = run.spanOf.get(step);
    if (span === undefined) return;
    for (const channel of model.plan.channels[step]) {
      traffic[channel].copies += 1;
      traffic[channel].bytes += model.plan.bytes[step];
      traffic[channel].ns += run.length[span];
    }
    if (kind === COPY || kind === LOAD) {
      const key = model.plan.place[step].join(">");
      between.set(key, (between.get(key) || 0) + model.plan.bytes[step]);
    }
  });
  if (!model.cluster.links.length) {
    body.append(el("p", null, `All devices share the memory ${model.memories.map((memory) => memory.name).join(", ")}, so nothing is copied.`));
    return;
  }
  const used = traffic.some((one) => one.copies);
  if (!used) body.append(el("p", null, "Nothing is copied between memories in this plan."));
  const ofChannel = traffic.map(() => []);
  for (const link of model.cluster.links) ofChannel[link[5]].push(link);
  const linkText = (channel) => ofChannel[channel]
    .map(([, src, dst, rate, latency]) => `${model.memories[src].name} \u2192 ${model.memories[dst].name} ${format.rate(rate)}, ${format.ns(latency)}`);
  const row = (channel) => {
    const one = traffic[channel], name = model.cluster.channels[channel];
    return [name, linkTexts(linkText(channel)), String(one.copies), format.bytes(one.bytes),
      format.ns(one.ns), format.share(one.ns, run.makespan), format.ns(critical.get(name) || 0),
      el("div", { class: "meter", "aria-hidden": "true" }, el("div", { style: `width:${Math.min(100, (100 * one.ns) / Math.max(1, run.makespan)).toFixed(1)}%` }))];
  };
  const isFew = traffic.length <= MAX_PLACES;
  const shown = busiest(traffic.map((one) => one.ns)).filter((channel) => isFew || traffic[channel].copies);
  body.append(table("Links of one channel share its bandwidth; a copy over several links counts on each",
    ["channel", "links (bandwidth, latency)", ">copies", ">data", ">busy", ">of the makespan", ">on the critical path", "busy as a bar"],
    shown.map(row)));
  const hidden = traffic.filter((one, channel) => !shown.includes(channel));
  if (hidden.length) body.append(el("p", { class: "soft" }, `and ${format.count(hidden.length, "more channel")}, of which ${hidden.filter((one) => one.copies).length} are used`));
  if (used && model.memories.length > 1) body.append(el("h3", null, "Bytes between memories"), matrix(model, between));
};

/* All positions where there are few; else those of the largest values, in their order. */
const busiest = (values) => values.map((value, id) => id)
  .sort((a, b) => values[b] - values[a] || a - b).slice(0, MAX_PLACES).sort((a, b) => a - b);

const linkTexts = (texts) => el("span", { class: "unbroken" }, texts.slice(0, 4).map((text, i) => [i ? el("br") : null, text]),
  texts.length > 4 ? [el("br"), `and ${texts.length - 4} more`] : null);

const matrix = (model, between) => {
  const moved = model.memories.map(() => 0);
  for (const [key, bytes] of between) for (const id of key.split(">")) moved[id] += bytes;
  const ends = new Set([...between.keys()].flatMap((key) => key.split(">").map(Number)));
  const ids = busiest(moved).filter((id) => ends.has(id));
  const rest = ends.size - ids.length;
  const most = [...between.values()].reduce((a, b) => Math.max(a, b), 0);
  return table(`From (rows) to (columns); darker is more${rest ? `; ${rest} more memories are left out` : ""}`, ["from \\ to", ...ids.map((id) => `>${model.memories[id].name}`)],
    ids.map((src) => [model.memories[src].name, ...ids.map((dst) => {
      const bytes = between.get(`${src}>${dst}`) || 0;
      if (!bytes) return src === dst ? "" : "0";
      return el("span", { style: `padding: 1px 6px; background: color-mix(in srgb, var(--d1) ${Math.round(8 + (36 * bytes) / most)}%, transparent)` }, format.bytes(bytes));
    })]));
};
