/* The timelines as they are shown -> one file, SVG or PNG. Nothing leaves the browser. */
const PICTURE_TITLE = 30, RUN_TITLE = 24, PNG_SCALE = 2, MIN_PICTURE_WIDTH = 720;

/* What `Lanes` and `paintPicture` need of a canvas context, recorded as SVG elements. */
class SvgPen {
  constructor(width, height) {
    this.root = svg("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
    this.groups = [this.root];
    this.globalAlpha = 1; this.lineWidth = 1; this.dash = []; this.path = ""; this.numClips = 0;
    this.meter = document.createElement("canvas").getContext("2d");
  }

  get group() { return this.groups[this.groups.length - 1]; }
  add(tag, attributes, ...children) {
    const node = svg(tag, { opacity: this.globalAlpha === 1 ? null : this.globalAlpha, ...attributes }, ...children);
    this.group.append(node);
    return node;
  }
  save() { const group = svg("g"); this.group.append(group); this.groups.push(group); }
  restore() { this.groups.pop(); }
  translate(x, y) { this.group.setAttribute("transform", `translate(${x} ${y})`); }
  rect(x, y, width, height) { this.box = { x, y, width, height }; }
  clip() {
    const id = `clip-${this.numClips++}`;
    this.group.append(svg("clipPath", { id }, svg("rect", this.box)));
    this.group.setAttribute("clip-path", `url(#${id})`);
  }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${x.toFixed(1)} ${y.toFixed(1)}`; }
  lineTo(x, y) { this.path += `L${x.toFixed(1)} ${y.toFixed(1)}`; }
  setLineDash(dash) { this.dash = dash; }
  get line() { return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-dasharray": this.dash.length ? this.dash.join(" ") : null }; }
  stroke() { if (this.path) this.add("path", { d: this.path, ...this.line }); }
  fill() { this.add("path", { d: this.path, fill: this.fillStyle }); }
  fillRect(x, y, width, height) { this.add("rect", { x: x.toFixed(1), y, width: width.toFixed(1), height, fill: this.fillStyle }); }
  strokeRect(x, y, width, height) { this.add("rect", { x: x.toFixed(1), y, width: Math.max(0, width).toFixed(1), height, ...this.line }); }
  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    this.add("text", { x: x.toFixed(1), y: y + 4, "text-anchor": anchor, fill: this.fillStyle, style: `font: ${this.font}` }, text);
  }
  measureText(text) { this.meter.font = this.font; return this.meter.measureText(text); }
  /* The patterns of the devices, as `canvasFills`, with their colours written out. */
  fills(count) {
    if (!this.hasFills) {
      const name = (device) => `device-${device + 1}`;
      this.root.prepend(svg("defs", null, [...Array(count + 1).keys()].map((number) => devicePattern(number - 1, name(number - 1), css(colourOf(number - 1))))));
      this.hasFills = name;
    }
    return (device) => `url(#${this.hasFills(device)})`;
  }
}

const pictureHeight = (all) => PICTURE_TITLE + all.reduce((sum, lanes) => sum + RUN_TITLE + lanes.height, 8);

/* Draws the title and all timelines, one above the other. */
const paintPicture = (pen, all, width) => {
  pen.fillStyle = css("--card");
  pen.fillRect(0, 0, width, pictureHeight(all));
  const line = (text, y, font) => {
    pen.font = font; pen.textBaseline = "middle"; pen.textAlign = "left"; pen.fillStyle = css("--text");
    pen.fillText(clipped(pen, text, width - 16), 8, y);
  };
  line(document.title, PICTURE_TITLE / 2, "600 15px system-ui, sans-serif");
  let top = PICTURE_TITLE;
  for (const lanes of all) {
    line(lanes.title, top + RUN_TITLE / 2, "600 13px system-ui, sans-serif");
    top += RUN_TITLE;
    pen.save();
    pen.translate(0, top);
    lanes.paint(pen, width);
    pen.restore();
    top += lanes.height;
  }
};

const pictureWidth = (all) => Math.max(MIN_PICTURE_WIDTH, all[0].canvas.clientWidth);

const svgPicture = (all) => {
  const width = pictureWidth(all), pen = new SvgPen(width, pictureHeight(all));
  paintPicture(pen, all, width);
  return new Blob([new XMLSerializer().serializeToString(pen.root)], { type: "image/svg+xml" });
};

const pngPicture = (all) => {
  const width = pictureWidth(all), canvas = document.createElement("canvas");
  canvas.width = width * PNG_SCALE;
  canvas.height = pictureHeight(all) * PNG_SCALE;
  const pen = canvas.getContext("2d");
  pen.scale(PNG_SCALE, PNG_SCALE);
  paintPicture(pen, all, width);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
};

const download = (blob, name) => {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
};

const saveButtons = (model, all, redraw) => {
  const name = (model.graph || "plan").replace(/[^\w.-]+/g, "_");
  const button = (ending, picture) => el("button", { type: "button", "aria-label": `Save the timeline as ${ending.toUpperCase()}`, onclick: async () => {
    const blob = await picture(all);
    redraw(); // the picture has another width
    download(blob, `${name}-timeline.${ending}`);
  } }, `save ${ending.toUpperCase()}`);
  return [button("svg", svgPicture), button("png", pngPicture)];
};
