/* One timeline on one canvas: a lane per device and channel, arrows of data, the critical path. */
const LANE = 30, TOP = 24, MAX_ARROWS = 400, FEW_ARROWS = 30;

class Lanes {
  constructor(model, run, view) {
    Object.assign(this, { model, run, view, selected: null, gutter: 120, width: 1 });
    this.lanes = run.lanes.map((name, id) => id).filter((id) => run.ofLane[id].length
      || id < model.devices.length);
    this.row = new Map(this.lanes.map((lane, row) => [lane, row]));
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": this.description() });
    this.height = TOP + this.lanes.length * LANE + 4;
    this.canvas.style.height = `${this.height}px`;
  }

  description() {
    const { run, model } = this;
    const busy = this.lanes.map((lane) => {
      const ns = run.ofLane[lane].reduce((sum, span) => sum + run.length[span], 0);
      return `${run.lanes[lane]} ${format.share(ns, run.makespan)}`;
    });
    return `${run.label} timeline of ${format.ns(run.makespan)}; busy: ${busy.join(", ")}. `
      + `Arrow keys, A and D move; plus, minus, W and S zoom; the table below it has the same. ${model.graph.name || ""}`;
  }

  laneName(lane) {
    const device = this.model.devices[lane];
    return this.run.lanes[lane] + (device && this.model.hosts.length > 1 ? ` @${device.host}` : "");
  }

  get title() {
    const { label, source, makespan } = this.run;
    const how = source === "simulated" ? ", simulated without interference" : source === label ? ", one run" : ` (${source})`;
    return `${capital(label)}${how}: ${format.ns(makespan)}`;
  }

  x(ns) { return this.gutter + ((ns - this.view.from) / (this.view.to - this.view.from)) * this.width; }
  ns(x) { return this.view.from + ((x - this.gutter) / this.width) * (this.view.to - this.view.from); }
  y(lane) { return TOP + this.row.get(lane) * LANE; }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const total = this.canvas.clientWidth;
    if (!total) return;
    this.canvas.width = Math.round(total * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.paint(pen, total);
  }

  /* Onto a canvas, or into a file (SvgPen), `total` wide. */
  paint(pen, total) {
    pen.font = "12px system-ui, sans-serif";
    const longest = Math.max(...this.lanes.map((lane) => pen.measureText(this.laneName(lane)).width));
    this.gutter = Math.min(Math.max(longest + 16, 60), total < 600 ? total * 0.3 : 200);
    this.width = total - this.gutter - 8;
    const count = this.model.devices.length;
    this.fills = pen.fills ? pen.fills(count) : canvasFills(pen, count);
    // Asked once for each drawing: a question makes the browser compute all styles.
    const channel = css("--channel");
    this.plain = this.run.lanes.map((name, lane) => (lane < this.model.devices.length ? css(colourOf(lane)) : channel));
    pen.textBaseline = "middle";
    this.axis(pen, total);
    pen.save();
    pen.beginPath(); pen.rect(this.gutter, 0, this.width + 8, this.height); pen.clip();
    this.drawn = 0;
    for (const lane of this.lanes) this.lane(pen, lane);
    if (this.view.hasCritical) this.critical(pen);
    this.arrowsLeftOut = this.view.hasArrows ? this.arrows(pen) : 0;
    pen.restore();
  }

  axis(pen, total) {
    const soft = css("--soft"), line = css("--line"), text = css("--text");
    pen.textAlign = "center";
    for (const at of ticks(this.view.from, this.view.to, this.width / 110)) {
      const x = this.x(at);
      pen.strokeStyle = line;
      pen.beginPath(); pen.moveTo(x, TOP - 4); pen.lineTo(x, this.height); pen.stroke();
      pen.fillStyle = soft;
      const half = pen.measureText(format.ns(at)).width / 2 + 2;
      pen.fillText(format.ns(at), Math.min(Math.max(x, this.gutter + half), total - half), 10);
    }
    pen.textAlign = "right";
    for (const lane of this.lanes) {
      pen.fillStyle = text;
      pen.fillText(clipped(pen, this.laneName(lane), this.gutter - 12), this.gutter - 8, this.y(lane) + LANE / 2);
      pen.strokeStyle = line;
      pen.beginPath(); pen.moveTo(0, this.y(lane) + LANE); pen.lineTo(total, this.y(lane) + LANE); pen.stroke();
    }
  }

  /* First span of a lane that may end after the left edge. */
  first(spans) {
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.run.start[spans[middle]] + this.run.length[spans[middle]] < this.view.from) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  lane(pen, lane) {
    const { run, model } = this, spans = run.ofLane[lane], y = this.y(lane) + 4, height = LANE - 8;
    const edge = css("--text"), on = css("--on");
    let until = -1;
    for (let i = this.first(spans); i < spans.length; i++) {
      const span = spans[i];
      if (run.start[span] > this.view.to) break;
      const left = Math.max(this.x(run.start[span]), this.gutter - 2);
      const right = Math.min(this.x(run.start[span] + run.length[span]), this.gutter + this.width + 6);
      if (right <= until + 0.4) continue; // within a pixel that is drawn
      const step = run.step[span], size = Math.max(right - left, 1.2);
      until = left + size;
      this.drawn += 1;
      pen.globalAlpha = model.plan.guard[step] ? 0.6 : 1;
      pen.fillStyle = this.fills(lane < model.devices.length ? lane : model.deviceOf(step));
      pen.fillRect(left, y, size, height);
      pen.globalAlpha = 1;
      if (size > 3) {
        pen.strokeStyle = edge;
        pen.globalAlpha = 0.35;
        pen.setLineDash(model.plan.guard[step] ? [3, 2] : []);
        pen.strokeRect(left + 0.5, y + 0.5, size - 1, height - 1);
        pen.setLineDash([]);
        pen.globalAlpha = 1;
      }
      if (size > 34) {
        pen.fillStyle = on;
        pen.textAlign = "left";
        const items = model.items(step);
        const text = model.stepName(step) + (items.length ? ` [${items.join(",")}]` : "");
        const shown = clipped(pen, text, size - 8);
        const wide = pen.measureText(shown).width;
        pen.globalAlpha = 0.85; // so that a pattern does not cross the letters
        pen.fillStyle = this.plain[lane];
        pen.fillRect(left + 3, y + 4, wide + 2, height - 8);
        pen.globalAlpha = 1;
        pen.fillStyle = on;
        pen.fillText(shown, left + 4, y + height / 2 + 0.5);
      }
      if (step === this.selected) {
        pen.strokeStyle = css("--link"); pen.lineWidth = 3;
        pen.strokeRect(left, y - 2, Math.max(size, 4), height + 4);
        pen.lineWidth = 1;
      }
    }
  }

  /* A bar under each step of the path, and a line from each to the next. */
  critical(pen) {
    pen.strokeStyle = css("--accent");
    pen.lineWidth = 2;
    pen.beginPath();
    let before = null, until = -1;
    for (const [step] of this.run.critical) {
      const span = this.run.spanOf.get(step);
      const start = this.run.start[span], end = start + this.run.length[span];
      const y = this.y(this.run.lane[span]) + LANE - 3;
      if (end >= this.view.from && start <= this.view.to) {
        const left = this.x(start), right = Math.max(this.x(end), left + 1);
        if (right > until + 0.4 || before !== y) {
          if (before !== null && before !== y) { pen.moveTo(left, before); pen.lineTo(left, y); }
          pen.moveTo(left, y); pen.lineTo(right, y);
          until = right;
        }
      }
      before = y;
    }
    pen.stroke();
    pen.lineWidth = 1;
  }

  /* From the maker to the copy, from the copy to the reader; returns how many were too many. */
  arrows(pen) {
    const { run } = this, shown = [];
    let count = 0;
    for (const [maker, reader] of this.model.pairs) {
      const a = run.spanOf.get(maker), b = run.spanOf.get(reader);
      if (a === undefined || b === undefined) continue;
      const from = run.start[a] + run.length[a], to = run.start[b];
      if (Math.max(from, to) < this.view.from || Math.min(from, to) > this.view.to) continue;
      count += 1;
      if (count > MAX_ARROWS) continue;
      shown.push([this.x(from), this.y(run.lane[a]) + LANE / 2, this.x(to), this.y(run.lane[b]) + LANE / 2]);
    }
    if (count > MAX_ARROWS) return count;
    pen.strokeStyle = pen.fillStyle = css("--text");
    pen.globalAlpha = count > FEW_ARROWS ? 0.3 : 0.7; // names stay readable behind many
    for (const [x0, y0, x1, y1] of shown) {
      pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke();
      const turn = Math.atan2(y1 - y0, x1 - x0);
      pen.beginPath(); pen.moveTo(x1, y1);
      for (const side of [-0.4, 0.4]) pen.lineTo(x1 - 7 * Math.cos(turn + side), y1 - 7 * Math.sin(turn + side));
      pen.fill();
    }
    pen.globalAlpha = 1;
    return 0;
  }

  /* The span under a point of the canvas; null: none. */
  at(x, y) {
    const lane = this.lanes[Math.floor((y - TOP) / LANE)];
    if (lane === undefined || x < this.gutter) return null;
    const slack = (this.view.to - this.view.from) / this.width;
    const time = this.ns(x);
    let found = null;
    for (const span of this.run.ofLane[lane]) {
      if (this.run.start[span] > time + slack) break;
      if (this.run.start[span] + this.run.length[span] >= time - slack) found = span;
    }
    return found;
  }
}

const clipped = (pen, text, width) => {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}\u2026`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}\u2026` : "";
};
