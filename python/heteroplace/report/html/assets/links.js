/* What goes over each link and channel, and between which memories. */
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
    body.append(el("p", null, `There are no links: all devices share the memory ${model.memories.map((memory) => memory.name).join(", ")}, and nothing is copied.`));
    return;
  }
  const used = traffic.some((one) => one.copies);
  if (!used) body.append(el("p", null, "Nothing is copied between memories in this plan."));
  const linkText = (channel) => model.cluster.links.filter((link) => link[5] === channel)
    .map(([, src, dst, rate, latency]) => `${model.memories[src].name} \u2192 ${model.memories[dst].name} ${format.rate(rate)}, ${format.ns(latency)}`);
  body.append(table("Channels: links of one channel share it. A copy over several links counts on each",
    ["channel", "links (bandwidth, latency)", ">copies", ">data", ">busy", ">of the makespan", ">on the critical path", "as a bar"],
    traffic.map((one, channel) => [model.cluster.channels[channel], linkTexts(linkText(channel)), String(one.copies), format.bytes(one.bytes),
      format.ns(one.ns), format.share(one.ns, run.makespan), format.ns(critical.get(model.cluster.channels[channel]) || 0),
      el("div", { class: "meter", "aria-hidden": "true" }, el("div", { style: `width:${Math.min(100, (100 * one.ns) / Math.max(1, run.makespan)).toFixed(1)}%` }))])));
  if (used && model.memories.length > 1) body.append(el("h3", null, "Bytes between memories"), matrix(model, between));
};

const linkTexts = (texts) => el("span", { class: "unbroken" }, texts.slice(0, 4).map((text, i) => [i ? el("br") : null, text]),
  texts.length > 4 ? [el("br"), `and ${texts.length - 4} more`] : null);

const matrix = (model, between) => {
  const ids = model.memories.map((memory, id) => id)
    .filter((id) => [...between.keys()].some((key) => key.split(">").includes(String(id))));
  const most = Math.max(...between.values());
  return table("From (rows) to (columns); darker is more", ["from \\ to", ...ids.map((id) => `>${model.memories[id].name}`)],
    ids.map((src) => [model.memories[src].name, ...ids.map((dst) => {
      const bytes = between.get(`${src}>${dst}`) || 0;
      if (!bytes) return src === dst ? "" : "0";
      return el("span", { style: `padding: 1px 6px; background: color-mix(in srgb, var(--d1) ${Math.round(8 + (36 * bytes) / most)}%, transparent)` }, format.bytes(bytes));
    })]));
};
