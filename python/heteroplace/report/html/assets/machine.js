/* The cluster, versions and digests, and the command that makes the page again. */
const drawMachine = (model) => {
  const body = panel("machine");
  // Lanes begin with the devices; a collective that leaves its devices free has spans on channels alone.
  const { ofLane, length } = model.predicted;
  const busy = model.devices.map((device) => ofLane[device.id].reduce((sum, span) => sum + length[span], 0));
  const counts = model.devices.map(() => 0);
  model.plan.kind.forEach((kind, step) => {
    if (kind !== RUN && kind !== COLLECTIVE) return;
    const places = kind === RUN ? [model.plan.place[step]] : model.plan.place[step];
    for (const device of places) counts[device] += 1;
  });
  body.append(table(`Devices of the cluster ${model.cluster.name}`, ["device", "kind", "target", "memory", ...(model.hosts.length > 1 ? ["host"] : []), ">runs", ">busy", ">of the makespan"],
    model.devices.map((device) => [deviceLabel(model, device.id), device.kind, device.target, model.memories[device.memory].name, ...(model.hosts.length > 1 ? [device.host] : []),
      String(counts[device.id]), format.ns(busy[device.id]), format.share(busy[device.id], model.predicted.makespan)])));
  body.append(table("Versions and digests", ["what", "value"], model.properties.map(([name, value]) => [name, { text: value, class: "wide" }])));
  for (const [title, text] of model.texts) body.append(el("h3", null, title), el("pre", { tabindex: "0" }, text));
  body.append(el("h3", null, "Command that makes this page again"));
  body.append(model.command ? el("pre", { tabindex: "0" }, model.command) : missing("A program made this page and named no command."));
};
