/* "Why is it there?": one task, answered in sentences; found by name, op, a click, or #op=NAME. */
const askStep = (model, step) => {
  const kind = model.plan.kind[step], subject = model.plan.subject[step];
  if (kind === RUN || kind === COLLECTIVE) { ask(model, subject); return; }
  const task = kind === COPY ? model.tensors.producer[subject] : subject[0];
  const reader = kind === COPY ? model.tensors.consumers[subject][0] : task;
  if (task >= 0 || reader !== undefined) ask(model, task >= 0 ? task : reader);
};

const ask = (model, task) => {
  const section = document.getElementById("answer");
  section.hidden = false;
  const steps = model.stepsOf[task];
  panel("answer").replaceChildren(...answer(model, task));
  const hash = `#op=${encodeURIComponent(model.tasks.name[task])}`;
  if (window.location.hash !== hash) window.history.replaceState(null, "", hash);
  if (steps.length) timeline.show(steps[0]);
  section.scrollIntoView({ block: "start" });
};

const answer = (model, task) => {
  const name = model.tasks.name[task], members = model.tasks.members[task];
  const parts = [el("h3", { style: "margin-top:0" }, `${name} is on ${model.deviceNames(task)}`)];
  if (model.tasks.layer[task]) parts.push(el("p", null, el("b", null, "Layer: "), model.tasks.layer[task]));
  parts.push(el("p", null, `${model.op(task)}${members.length ? ` (${members.slice(0, 12).join(", ")}${members.length > 12 ? ", \u2026" : ""})` : ""}`));
  parts.push(el("p", null, el("b", null, "Why: "), model.tasks.reason[task] || "the plan gives no reason"));
  const limits = model.tasks.limits[task];
  if (limits) parts.push(el("p", null, limitsText(limits)));
  parts.push(el("p", null, whenText(model, task)));
  parts.push(deviceTable(model, task));
  if (!model.movesOf.has(task)) parts.push(missing(model.missing.moves || "What moving it would cost is unknown."));
  parts.push(neighbours(model, task));
  parts.push(el("button", { type: "button", onclick: () => {
    document.getElementById("answer").hidden = true;
    timeline.all.forEach((lanes) => { lanes.selected = null; });
    timeline.fit();
    window.history.replaceState(null, "", "#timeline");
  } }, "close"));
  return parts;
};

const limitsText = ({ only, together, branch }) => [
  only ? `It may run on ${only.join(", ")} only.` : "",
  together ? `It shares a device with all of the colocation group ${together}.` : "",
  branch ? `It runs only for what router ${branch[0]} sends to branch ${branch[1]}.` : "",
].filter(Boolean).join(" ");

const whenText = (model, task) => {
  const parts = model.stepsOf[task].slice(0, 8).map((step) => {
    const span = model.predicted.spanOf.get(step);
    if (span === undefined) return "";
    const run = model.predicted, items = model.items(step);
    const measured = model.measuredRun && model.measuredRun.spanOf.get(step);
    return `${items.length ? `items ${items.join(",")}: ` : ""}starts at ${format.ns(run.start[span])} and takes ${format.ns(run.length[span])}`
      + (measured === undefined || measured === null ? "" : ` (measured ${format.ns(model.measuredRun.length[measured])})`)
      + (run.isCritical.has(step) ? ", on the critical path" : ", not on the critical path");
  });
  return `When: ${parts.filter(Boolean).join("; ") || "it takes no time of its own"}.`;
};

const sourceText = ({ ns, source, spread, reason, error }) => {
  if (ns === null) return `${source}${reason ? `: ${reason}` : ""}`;
  const off = error === null ? "" : `, \u00b1${(100 * error).toFixed(1)} %`;
  const guess = source === "roofline" ? " (a guess)" : "";
  return `${source}${guess}${off}${spread ? `, spread ${format.ns(spread)}` : ""}`;
};

const deviceTable = (model, task) => {
  const own = model.devicesOf(task), row = model.movesOf.get(task);
  const batches = [...new Set(model.stepsOf[task].map((step) => model.items(step).length).filter((size) => size > 1))]
    .filter((size) => model.costs.batches.includes(size)).sort((a, b) => a - b);
  return table(`Time of ${model.tasks.name[task]} on each device, and the ${model.isThroughput ? "time per item" : "time of the run"} with only this task moved there`,
    ["device", ">time", ...batches.map((size) => `>for ${size} items`), "source", ">with the move", "change"],
    model.devices.map((device) => {
      const cost = model.cost(task, device.id), isOwn = own.includes(device.id);
      const moved = row ? row[device.id] : undefined;
      const delta = moved === null || moved === undefined ? null : moved - model.moves.baseline;
      const text = isOwn ? "it is here" : moved === undefined ? "unknown" : moved === null ? "it cannot run there" : moveText(model, delta);
      return [deviceLabel(model, device.id), { text: format.ns(cost.ns), class: isOwn ? "chosen" : null },
        ...batches.map((size) => format.ns(model.cost(task, device.id, size).ns)), sourceText(cost),
        moved === null || moved === undefined ? "-" : format.ns(moved),
        { text, class: !isOwn && delta > 0 ? "worse" : !isOwn && delta < 0 ? "better" : null }];
    }));
};

/* What it reads and makes, with where that is. */
const neighbours = (model, task) => {
  const rows = [];
  model.tensors.consumers.forEach((readers, tensor) => {
    if (!readers.includes(task)) return;
    const maker = model.tensors.producer[tensor];
    rows.push(["reads", maker < 0 ? `${model.tensors.name[tensor]} (model input)` : taskButton(model, maker), maker < 0 ? "-" : model.deviceNames(maker), format.bytes(model.tensors.bytes[tensor])]);
  });
  model.tensors.producer.forEach((maker, tensor) => {
    if (maker !== task) return;
    for (const reader of model.tensors.consumers[tensor].slice(0, 20)) {
      rows.push(["is read by", taskButton(model, reader), model.deviceNames(reader), format.bytes(model.tensors.bytes[tensor])]);
    }
  });
  return table("Neighbours", ["relation", "task", "where", ">data"], rows.slice(0, 60));
};

const MAX_FOUND = 30;
const found = (model, text) => {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const groups = [[], [], []];
  model.tasks.name.forEach((name, task) => {
    const own = name.toLowerCase();
    if (own === wanted) groups[0].unshift(task);
    else if (own.startsWith(wanted)) groups[0].push(task);
    else if (own.includes(wanted)) groups[1].push(task);
    else if (model.op(task).toLowerCase().includes(wanted) || model.tasks.layer[task].toLowerCase().includes(wanted) || model.tasks.members[task].some((member) => member.toLowerCase().includes(wanted))) groups[2].push(task);
  });
  return groups.flat();
};

const drawAsk = (model) => {
  const input = document.getElementById("ask-input"), list = document.getElementById("ask-list");
  let tasks = [], active = -1;
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const mark = (next) => {
    active = next;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    if (active >= 0) { input.setAttribute("aria-activedescendant", `ask-${active}`); list.children[active].scrollIntoView({ block: "nearest" }); }
  };
  const choose = (task) => { close(); input.value = model.tasks.name[task]; ask(model, task); };
  input.addEventListener("input", () => {
    tasks = found(model, input.value);
    const items = tasks.slice(0, MAX_FOUND).map((task, i) => el("li", { id: `ask-${i}`, role: "option", "aria-selected": "false", onpointerdown: (event) => { event.preventDefault(); choose(task); } },
      `${model.tasks.name[task]} (${model.op(task)}) on ${model.deviceNames(task)}`));
    if (!tasks.length && input.value.trim()) items.push(el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "no task has this in its name, layer or op"));
    else if (tasks.length > MAX_FOUND) items.push(el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, `and ${(tasks.length - MAX_FOUND).toLocaleString("en")} more`));
    list.replaceChildren(...items);
    list.hidden = !items.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  });
  input.addEventListener("keydown", (event) => {
    const count = Math.min(tasks.length, MAX_FOUND);
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" && count) { event.preventDefault(); mark((active + 1) % count); }
    else if (event.key === "ArrowUp" && count) { event.preventDefault(); mark((active + count - 1) % count); }
  });
  input.addEventListener("blur", close);
  document.getElementById("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (tasks.length) choose(tasks[Math.max(0, active)]);
  });
};

/* The task in the address, as #op=NAME. */
const askAddress = (model) => {
  const match = /^#op=(.+)$/.exec(window.location.hash);
  if (!match) return;
  const name = decodeURIComponent(match[1]);
  const task = model.taskIds.has(name) ? model.taskIds.get(name) : found(model, name)[0];
  if (task !== undefined) { ask(model, task); return; }
  const section = document.getElementById("answer");
  section.hidden = false;
  panel("answer").replaceChildren(missing(`There is no task ${name} in this plan.`));
};
