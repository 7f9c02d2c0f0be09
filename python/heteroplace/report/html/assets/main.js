/* Reads the data, draws each panel; a panel that fails says so and leaves the others. */
const PANELS = [
  ["headline", drawHeadline], ["timeline", drawTimeline], ["ops", drawOps], ["what-if", drawWhatIf],
  ["tasks", drawTasks], ["graph", drawGraph], ["memory", drawMemory], ["links", drawLinks], ["accuracy", drawAccuracy], ["solver", drawSolver], ["machine", drawMachine],
];

const theme = {
  get isDark() {
    const set = document.documentElement.dataset.theme;
    return set ? set === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  },
  set(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    timeline.redraw();
  },
};

const main = async () => {
  const begin = performance.now();
  const model = new Model(await inflate(document.getElementById("data").textContent));
  const fills = svg("svg", { width: 0, height: 0, style: "position:absolute", "aria-hidden": "true" }, svgFills(model.devices.length));
  document.body.append(fills);
  for (const [id, draw] of PANELS) {
    try {
      draw(model);
    } catch (fault) {
      console.error(fault);
      panel(id).append(missing(`This part could not be drawn: ${fault.message}.`));
    }
  }
  drawAsk(model);
  document.getElementById("theme").addEventListener("click", () => theme.set(theme.isDark ? "light" : "dark"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline.redraw());
  let before;
  window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; theme.set("light"); });
  window.addEventListener("afterprint", () => theme.set(before));
  window.addEventListener("hashchange", () => askAddress(model));
  askAddress(model);
  document.documentElement.dataset.ready = String(Math.round(performance.now() - begin));
};

main().catch((fault) => {
  console.error(fault);
  panel("headline").append(missing(`The data of this page cannot be read (${fault.message}); it needs a browser of 2023 or later.`));
});
