/* One device fewer, one more: predictions that were computed when the page was written. */
const drawWhatIf = (model) => {
  const body = panel("what-if");
  if (!model.alternatives.length) {
    body.append(missing(model.missing.alternatives || "No prediction was made for other devices."));
    return;
  }
  const unit = model.isThroughput ? "times per item" : "times of one run";
  const output = el("div", { role: "status", id: "what-if-answer" });
  const buttons = model.alternatives.map((one) => el("button", {
    type: "button", "aria-pressed": "false", "aria-controls": "what-if-answer",
  }, one.label));
  buttons.forEach((button, number) => button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    output.replaceChildren(...whatIfAnswer(model, model.alternatives[number]));
  }));
  body.append(el("p", null, `These are predictions: ${unit} of a new plan, found by a short search and simulated without interference. Nothing was measured.`),
    el("div", { class: "bar-row", role: "group", "aria-label": "What if" }, buttons), output);
};

const whatIfAnswer = (model, { label, changes, ns, devices, reason }) => {
  if (ns === null) return [el("p", null, el("b", null, `No plan ${label}: `), reason)];
  const before = model.objective, change = ns - before;
  const size = format.share(Math.abs(change), before);
  const text = change === 0 ? "no change" : `${size} ${change > 0 ? "longer" : "shorter"}`;
  return [
    el("p", null, el("b", null, `Predicted ${label}: ${format.ns(ns)} instead of ${format.ns(before)}, ${text}.`)),
    timeBars([{ name: "as it is", ns: before, kind: "predicted" }, { name: label, ns, kind: "predicted" }]),
    el("p", { class: "soft" }, `The new plan uses ${devices.join(", ")}. ${changes.map((change) => `${capital(change)}.`).join(" ")}`),
  ];
};
