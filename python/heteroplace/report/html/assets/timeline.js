/* The timelines one above the other, with one view: zoom, move, hover, choose, and as a table. */
const MAX_TABLE_ROWS = 200;
let timeline = null; // what `ask` shows a task in

const drawTimeline = (model) => {
  const body = panel("timeline");
  const end = Math.max(1, ...model.runs.map((run) => run.makespan));
  const view = { from: 0, to: end, end, hasCritical: true, hasArrows: true };
  const all = model.runs.map((run) => new Lanes(model, run, view));
  const status = el("p", { class: "soft", role: "status" });
  const redraw = () => {
    all.forEach((lanes) => lanes.draw());
    status.textContent = statusText(model, view, all);
  };
  timeline = controls(view, all, redraw);
  const row = buttons(view, redraw, timeline);
  row.append(...saveButtons(model, all, redraw),
    el("span", { class: "soft" }, "Ctrl or \u2318 and the wheel zooms, dragging moves, a click asks why"));
  body.append(row, legend(model));
  if (!model.measuredRun) body.append(missing(model.missing.measured));
  for (const lanes of all) {
    body.append(el("div", { class: "lane-box" }, el("p", null, lanes.title), lanes.canvas));
    listen(model, lanes, timeline);
  }
  body.append(status, asTable(model, view));
  timeline.redraw = redraw;
  redraw();
  let width = body.clientWidth; // the observer begins with a call, and heights change by themselves
  new ResizeObserver(() => {
    if (body.clientWidth !== width) redraw();
    width = body.clientWidth;
  }).observe(body);
};

const statusText = (model, view, all) => {
  const left = Math.max(...all.map((lanes) => lanes.arrowsLeftOut || 0));
  const arrows = left ? ` ${left.toLocaleString("en")} arrows here: zoom in to see them.` : "";
  return `Shown: ${format.ns(view.from)} to ${format.ns(view.to)} of ${format.ns(view.end)}, `
    + `${format.count(all[0].drawn, "step")} drawn.${arrows}`;
};

const controls = (view, all, redraw) => {
  const set = (from, to) => {
    const size = Math.min(Math.max(to - from, Math.max(20, view.end * 1e-7)), view.end);
    view.from = Math.min(Math.max(0, from), view.end - size);
    view.to = view.from + size;
    redraw();
  };
  return {
    all,
    set,
    zoom(factor, centre = (view.from + view.to) / 2) {
      set(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
    },
    move(share) { const by = (view.to - view.from) * share; set(view.from + by, view.to + by); },
    fit() { set(0, view.end); },
    /* Show a step in the middle, with its neighbourhood. */
    show(step) {
      const run = all[0].run, span = run.spanOf.get(step);
      all.forEach((lanes) => { lanes.selected = step; });
      if (span === undefined) { redraw(); return; }
      const around = Math.max(run.length[span] * 12, view.end / 200);
      const middle = run.start[span] + run.length[span] / 2;
      set(middle - around / 2, middle + around / 2);
    },
  };
};

const buttons = (view, redraw, moves) => {
  const button = (text, title, act) => el("button", { type: "button", title, "aria-label": `${text} ${title}`, onclick: act }, text);
  const toggle = (text, name) => {
    const node = el("button", { type: "button", "aria-pressed": String(view[name]) }, text);
    node.addEventListener("click", () => {
      view[name] = !view[name];
      node.setAttribute("aria-pressed", String(view[name]));
      redraw();
    });
    return node;
  };
  return el("div", { class: "bar-row", role: "toolbar", "aria-label": "Timeline" },
    button("+", "zoom in", () => moves.zoom(0.5)), button("\u2212", "zoom out", () => moves.zoom(2)),
    button("\u2190", "earlier", () => moves.move(-0.4)), button("\u2192", "later", () => moves.move(0.4)),
    button("all", "of the run", () => moves.fit()),
    toggle("critical path", "hasCritical"), toggle("arrows", "hasArrows"));
};

const listen = (model, lanes, moves) => {
  const { canvas } = lanes;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    moves.zoom(Math.exp(event.deltaY * 0.002), lanes.ns(place(event)[0]));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from: lanes.view.from, to: lanes.view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = ((event.clientX - drag.x) / lanes.width) * (drag.to - drag.from);
      drag.moved = drag.moved || Math.abs(event.clientX - drag.x) > 3;
      if (drag.moved) moves.set(drag.from - by, drag.to - by);
      return;
    }
    const span = lanes.at(...place(event));
    if (span === null) tip.hide();
    else tip.show(event, spanText(model, lanes.run, span));
  });
  canvas.addEventListener("pointerup", (event) => {
    const wasClick = drag && !drag.moved;
    drag = null;
    const span = wasClick ? lanes.at(...place(event)) : null;
    if (span !== null) askStep(model, lanes.run.step[span]);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => tip.hide());
  const keys = {
    ArrowLeft: () => moves.move(-0.2), ArrowRight: () => moves.move(0.2), "+": () => moves.zoom(0.5),
    "=": () => moves.zoom(0.5), "-": () => moves.zoom(2), w: () => moves.zoom(0.5), s: () => moves.zoom(2),
    a: () => moves.move(-0.2), d: () => moves.move(0.2), Home: () => moves.fit(), 0: () => moves.fit(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
};

const spanText = (model, run, span) => {
  const step = run.step[span], kind = model.plan.kind[step], subject = model.plan.subject[step];
  const lines = [];
  if (kind === RUN || kind === COLLECTIVE) {
    const layer = model.tasks.layer[subject];
    lines.push(...(layer ? [`layer ${layer}`, `task ${model.tasks.name[subject]}`] : [model.tasks.name[subject]]));
    lines.push(model.op(subject), model.shapes(subject));
  } else {
    lines.push(model.stepName(step), `${KIND_NAMES[kind]} of ${format.bytes(model.plan.bytes[step])}`);
    if (kind === COPY) lines.push(model.typeOf(subject));
  }
  const start = run.start[span], length = run.length[span];
  lines.push(`${run.lanes[run.lane[span]]}: ${format.ns(start)} to ${format.ns(start + length)}, ${format.ns(length)} (${run.label})`);
  for (const other of model.runs) {
    if (other === run || !other.spanOf.has(step)) continue;
    lines.push(`${other.label}: ${format.ns(other.length[other.spanOf.get(step)])}`);
  }
  const items = model.items(step);
  if (items.length) lines.push(`items ${items.join(", ")}${items.length > 1 ? ` (a batch of ${items.length})` : ""}`);
  if (model.guard(step)) lines.push(`only if ${model.guard(step)}`);
  if (run.isCritical.has(step)) lines.push("on the critical path");
  return lines.join("\n");
};

/* The steps in view as a table, made when it is opened. */
const asTable = (model, view) => {
  const box = el("div");
  const details = el("details", null, el("summary", null, "The steps shown, as a table"), box);
  const hasLayers = model.tasks.layer.some((layer) => layer);
  const make = () => {
    if (!details.open) return;
    const run = model.predicted, rows = [];
    let count = 0;
    run.step.forEach((step, span) => {
      if (run.start[span] > view.to || run.start[span] + run.length[span] < view.from) return;
      count += 1;
      if (rows.length >= MAX_TABLE_ROWS) return;
      const measured = model.measuredRun && model.measuredRun.spanOf.get(step);
      const kind = model.plan.kind[step], subject = model.plan.subject[step];
      const isTask = kind === RUN || kind === COLLECTIVE;
      rows.push([model.stepName(step), ...(hasLayers ? [isTask ? model.tasks.layer[subject] : ""] : []),
        KIND_NAMES[kind], isTask ? model.shapes(subject) : format.bytes(model.plan.bytes[step]), run.lanes[run.lane[span]],
        format.ns(run.start[span]), format.ns(run.length[span]),
        measured === undefined || measured === null ? "-" : format.ns(model.measuredRun.length[measured]),
        run.isCritical.has(step) ? "yes" : ""]);
    });
    box.replaceChildren(table(`${rows.length} of ${format.count(count, "step")} in view`,
      ["step", ...(hasLayers ? ["layer"] : []), "kind", "shapes or bytes", "on", ">start", ">predicted", ">measured", "critical"], rows));
  };
  details.addEventListener("toggle", make);
  return details;
};
