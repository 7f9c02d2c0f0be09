/* Making elements, tables and tips; how a device looks: a colour and a pattern, never colour alone. */
const SVG = "http://www.w3.org/2000/svg";
const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
};
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);
const panel = (id) => document.querySelector(`#${id} > .body`);
/* A command stands between backticks. */
const missing = (text) => el("p", { class: "missing" },
  text.split("`").map((part, i) => (i % 2 ? el("code", null, part) : part)));
/* The ops of a task; a line may break after each. */
const opNames = (text) => el("span", null, text.split("+").map((op, i) => (i ? ["+", el("wbr"), op] : op)));

/* headers: texts; a leading ">" makes a column of numbers. Cells: text, a node, or
   {text, class}. */
const table = (caption, headers, rows, attributes = {}) => {
  const isNumber = headers.map((header) => header.startsWith(">"));
  const head = headers.map((header, i) =>
    el("th", { scope: "col", class: isNumber[i] ? "number" : null }, header.replace(/^>/, "")));
  const body = rows.map((row) => el("tr", null, row.map((cell, i) => {
    const isPlain = cell === null || typeof cell !== "object" || cell instanceof Node;
    const content = isPlain ? cell : cell.text;
    const names = [isNumber[i] && "number", !isPlain && cell.class].filter(Boolean).join(" ");
    return el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: names || null },
      content === null ? "" : content);
  })));
  // The caption stands outside of what scrolls, so that it is whole on a narrow screen.
  return el("div", { class: "table" }, el("p", { class: "caption", "aria-hidden": "true" }, caption),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      el("table", { ...attributes, "aria-label": caption },
        el("thead", null, el("tr", null, head)), el("tbody", null, body))));
};

const tip = {
  node: document.getElementById("tip"),
  show(event, text) {
    this.node.textContent = text;
    this.node.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const x = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const below = event.clientY + 18;
    const y = below + height > window.innerHeight - 8 ? event.clientY - height - 10 : below;
    this.node.style.left = `${Math.max(4, x)}px`;
    this.node.style.top = `${Math.max(4, y)}px`;
  },
  hide() { this.node.hidden = true; },
};

const NUM_COLOURS = 8;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (device) => (device < 0 ? "--channel" : `--d${device % NUM_COLOURS}`);
/* Lines of the pattern of a device in a cell of 8 x 8, as segments; device 0 is plain. */
const PATTERNS = [
  [],
  [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]],
  [[0, 4, 8, 4]],
  [[4, 0, 4, 8]],
  [[-2, -2, 10, 10], [6, -2, 10, 2], [-2, 6, 2, 10]],
  [[0, 4, 8, 4], [4, 0, 4, 8]],
  [[3, 3, 5, 5], [3, 5, 5, 3]],
];
const patternOf = (device) =>
  device < 0 ? [] : PATTERNS[(device + Math.floor(device / NUM_COLOURS)) % PATTERNS.length];

/* A canvas pattern for each device; made anew when the theme changes. */
const canvasFills = (context, count) => {
  const found = [];
  for (let device = -1; device < count; device++) {
    const cell = document.createElement("canvas");
    cell.width = cell.height = 8;
    const pen = cell.getContext("2d");
    pen.fillStyle = css(colourOf(device));
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = "rgba(20, 23, 26, 0.45)";
    for (const [x0, y0, x1, y1] of patternOf(device)) {
      pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke();
    }
    found[device + 1] = context.createPattern(cell, "repeat");
  }
  return (device) => found[device + 1];
};
const devicePattern = (device, id, colour) =>
  svg("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
    svg("rect", { width: 8, height: 8, style: `fill: ${colour}` }),
    patternOf(device).map(([x1, y1, x2, y2]) =>
      svg("line", { x1, y1, x2, y2, stroke: "#14171a", "stroke-opacity": 0.45 })));
const svgFills = (count) => svg("defs", null, [...Array(count).keys()].map((device) =>
  devicePattern(device, `fill-${device}`, `var(${colourOf(device)})`)));
const swatch = (device) => svg("svg", { class: "swatch", viewBox: "0 0 22 14", "aria-hidden": "true" },
  svg("rect", { width: 22, height: 14, fill: `url(#fill-${device})` }));
const deviceLabel = (model, device) => el("span", { class: "unbroken" }, swatch(device), model.devices[device].name);
const legend = (model) => el("div", { class: "bar-row legend", "aria-hidden": "true" },
  model.devices.map((device) => deviceLabel(model, device.id)));
const taskButton = (model, task) =>
  el("button", { type: "button", class: "link", onclick: () => ask(model, task) },
    model.tasks.name[task]);
