/* The tasks that take most time, what they would take elsewhere, and what moving them would cost. */
const FIRST_ROWS = 20;

const drawTasks = (model) => {
  const body = panel("tasks");
  if (model.missing.moves) body.append(missing(model.missing.moves));
  const order = model.tasks.name.map((name, task) => [model.spent(task), task]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const box = el("div");
  let count = Math.min(FIRST_ROWS, order.length);
  const draw = () => box.replaceChildren(taskTable(model, order.slice(0, count).map(([, task]) => task)));
  const more = el("button", { type: "button", onclick: () => {
    count = Math.min(count + 40, order.length);
    draw();
    more.hidden = count === order.length;
  } }, "more");
  more.hidden = count === order.length;
  draw();
  body.append(box, more);
};

const MAX_DEVICE_COLUMNS = 8;

const taskTable = (model, tasks) => {
  const shown = model.devices.slice(0, MAX_DEVICE_COLUMNS);
  const hasLayers = model.tasks.layer.some((layer) => layer);
  const rows = tasks.map((task) => {
    const own = model.devicesOf(task), best = bestMove(model, task);
    return [taskButton(model, task), ...(hasLayers ? [{ text: model.tasks.layer[task], class: "layer" }] : []), { text: opNames(model.op(task)), class: "op" }, el("span", null, own.map((device) => deviceLabel(model, device))),
      ...shown.map((device) => ({ text: format.ns(model.cost(task, device.id).ns), class: own.includes(device.id) ? "chosen" : null })),
      best === null ? "-" : { text: best.text, class: `move ${best.delta > 0 ? "worse" : best.delta < 0 ? "better" : ""}` },
      { text: model.tasks.reason[task] || "-", class: "wide" }];
  });
  const left = model.devices.length - shown.length;
  const caption = `Time of one run on each device${left > 0 ? ` (the first ${MAX_DEVICE_COLUMNS}; click a task to see all)` : ""}; the chosen one is bold`;
  return table(caption, ["task", ...(hasLayers ? ["layer"] : []), "op", "where", ...shown.map((device) => `>${device.name}`), "best move", "reason"], rows);
};

/* The best other place for a task: {device, delta, text}; null: not known, or nowhere else. */
const bestMove = (model, task) => {
  const row = model.movesOf.get(task);
  if (!row) return null;
  const own = model.devicesOf(task);
  let best = null;
  row.forEach((ns, device) => {
    if (ns === null || own.includes(device)) return;
    const delta = ns - model.moves.baseline;
    if (best === null || delta < best.delta) best = { device, delta };
  });
  if (best === null) return { device: -1, delta: 0, text: "no other place" };
  best.text = `to ${model.devices[best.device].name}: ${moveText(model, best.delta)}`;
  return best;
};

const moveText = (model, delta) => {
  const what = model.isThroughput ? " per item" : "";
  if (delta === 0) return "no change";
  return `${format.change(delta)}${what} (${delta > 0 ? "+" : "\u2212"}${format.share(Math.abs(delta), model.moves.baseline)})`;
};
