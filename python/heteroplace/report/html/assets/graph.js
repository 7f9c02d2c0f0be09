/* The network as layers that open on a click, coloured by where their time is spent. */
const NODE_WIDTH = 250, NODE_HEIGHT = 46, GAP_X = 22, GAP_Y = 30, PICTURE_WIDTH = 1240;

const drawGraph = (model) => {
  const body = panel("graph");
  const trail = el("nav", { class: "bar-row", "aria-label": "Layers" });
  const picture = el("div", { class: "picture" });
  const list = el("div");
  const open = (path) => {
    const folded = foldedGraph(model, path[path.length - 1]);
    trail.replaceChildren(...path.map((tree, depth) => el("button", {
      type: "button", "aria-current": depth === path.length - 1 ? "true" : null,
      onclick: () => open(path.slice(0, depth + 1)),
    }, tree[0])));
    picture.replaceChildren(graphPicture(model, folded, (node) => {
      if (node.tree) open([...path, node.tree]);
      else ask(model, node.first);
    }));
    list.replaceChildren(graphTable(model, folded));
  };
  body.append(el("p", { class: "soft" }, "Click a layer to open it, or a task to ask why it is there. "
    + "Thick lines are copies between memories, with their bytes. Thin lines stay in one memory."),
  legend(model), trail, picture, el("details", null, el("summary", null, "As a table"), list));
  open([model.tree]);
};

/* Children of a tree as nodes, what flows between them as edges. */
const foldedGraph = (model, tree) => {
  const [, first, end, children] = tree;
  const nodes = children.length
    ? children.map((child) => ({ name: child[0], first: child[1], end: child[2], tree: child }))
    : [...Array(end - first).keys()].map((i) => ({ name: model.tasks.layer[first + i] || model.tasks.name[first + i], first: first + i, end: first + i + 1, tree: null }));
  const owner = new Int32Array(model.tasks.name.length).fill(-1);
  nodes.forEach((node, id) => {
    owner.fill(id, node.first, node.end);
    node.times = model.devices.map(() => 0);
    node.critical = 0;
    node.copied = 0;
    for (let task = node.first; task < node.end; task++) {
      for (const step of model.stepsOf[task]) {
        const span = model.predicted.spanOf.get(step);
        if (span === undefined) continue;
        node.times[model.deviceOf(step)] += model.predicted.length[span];
        if (model.predicted.isCritical.has(step)) node.critical += model.predicted.length[span];
      }
    }
    node.total = node.times.reduce((sum, ns) => sum + ns, 0);
  });
  const edges = new Map();
  const { producer, consumers, bytes } = model.tensors;
  producer.forEach((maker, tensor) => {
    if (maker < 0 || owner[maker] < 0) return;
    const from = owner[maker], homes = memoriesOf(model, maker);
    // However many tasks read it in a part it is one tensor there, and in a memory one copy.
    const isCopiedTo = new Map(), copies = new Set();
    for (const reader of consumers[tensor]) {
      const to = owner[reader];
      if (to < 0 || to === from) continue;
      const away = memoriesOf(model, reader).filter((memory) => !homes.includes(memory));
      away.forEach((memory) => copies.add(memory));
      isCopiedTo.set(to, isCopiedTo.get(to) || away.length > 0);
    }
    nodes[from].copied += bytes[tensor] * copies.size;
    for (const [to, isCopied] of isCopiedTo) {
      const key = from * nodes.length + to;
      const edge = edges.get(key) || { from, to, bytes: 0, copied: 0 };
      edge.bytes += bytes[tensor];
      if (isCopied) edge.copied += bytes[tensor];
      edges.set(key, edge);
    }
  });
  return { nodes, edges: [...edges.values()] };
};

/* Of the devices of a task that is somewhere. */
const memoriesOf = (model, task) => model.devicesOf(task).filter((id) => model.devices[id]).map((id) => model.devices[id].memory);

/* Ranks by the longest way from the start, then neighbours near each other. */
const laidOut = ({ nodes, edges }) => {
  nodes.forEach((node) => { node.rank = 0; });
  const byFrom = [...edges].sort((a, b) => a.from - b.from);
  for (const { from, to } of byFrom) nodes[to].rank = Math.max(nodes[to].rank, nodes[from].rank + 1);
  const ranks = [];
  nodes.forEach((node) => { (ranks[node.rank] = ranks[node.rank] || []).push(node); });
  const before = new Map(nodes.map((node) => [node, []]));
  for (const { from, to } of edges) before.get(nodes[to]).push(nodes[from]);
  const most = Math.max(1, ...ranks.map((rank) => rank.length));
  // What is narrow and long is cut into columns beside each other.
  const columnWidth = most * (NODE_WIDTH + GAP_X) + 48;
  const numColumns = Math.max(1, Math.min(Math.floor(PICTURE_WIDTH / columnWidth), Math.ceil(ranks.length / 6)));
  const perColumn = Math.ceil(ranks.length / numColumns);
  ranks.forEach((rank, number) => {
    const column = Math.floor(number / perColumn), y = number % perColumn;
    const middle = (node) => {
      const found = before.get(node);
      return found.length ? found.reduce((sum, one) => sum + one.x, 0) / found.length : 0;
    };
    if (number) rank.sort((a, b) => middle(a) - middle(b) || a.first - b.first);
    rank.forEach((node, i) => {
      node.column = column;
      node.x = 16 + column * columnWidth + ((most - rank.length) / 2 + i) * (NODE_WIDTH + GAP_X);
      node.y = 16 + y * (NODE_HEIGHT + GAP_Y);
    });
  });
  return { width: 16 + numColumns * columnWidth, height: 24 + perColumn * (NODE_HEIGHT + GAP_Y) };
};

/* From the lower edge to the upper one; past others beside them, and from column to column across. */
const edgePath = (a, b) => {
  const x0 = a.x + NODE_WIDTH / 2, y0 = a.y + NODE_HEIGHT, x1 = b.x + NODE_WIDTH / 2, y1 = b.y;
  const right = a.x + NODE_WIDTH;
  if (a.column !== b.column) {
    const from = a.y + NODE_HEIGHT / 2, to = b.y + NODE_HEIGHT / 2, middle = b.x - 18;
    return `M ${right} ${from} C ${right + 30} ${from} ${middle} ${from} ${middle} ${(from + to) / 2} C ${middle} ${to} ${middle} ${to} ${b.x} ${to}`;
  }
  if (isPast(a, b)) {
    const bulge = right + 20 + 14 * Math.min(4, b.rank - a.rank);
    return `M ${right} ${y0 - 12} C ${bulge} ${y0 + 20} ${bulge} ${y1 - 20} ${right} ${y1 + 12}`;
  }
  return `M ${x0} ${y0} C ${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;
};

/* Whether an edge goes around nodes between; such edges tell their bytes to the mouse alone. */
const isPast = (a, b) => a.column === b.column && b.rank - a.rank > 1 && Math.abs(a.x - b.x) < 4;

/* Beside the middle of its edge. */
const labelPlace = (a, b) => {
  const [x, y] = [a.x + b.x, a.y + b.y].map((sum) => sum / 2);
  if (a.column !== b.column) return { x: b.x - 60, y: b.y + NODE_HEIGHT / 2 - 6 };
  return { x: x + NODE_WIDTH / 2 + 6, y: y + NODE_HEIGHT / 2 + 4 };
};

const graphPicture = (model, folded, choose) => {
  const { width, height } = laidOut(folded);
  const { nodes, edges } = folded;
  const lines = edges.map((edge) => {
    const a = nodes[edge.from], b = nodes[edge.to];
    const d = edgePath(a, b);
    return [svg("path", { d, style: `fill: none; stroke: var(${edge.copied ? "--text" : "--soft"})`, "stroke-width": edge.copied ? 3 : 1 },
      svg("title", null, `${a.name} to ${b.name}: ${format.bytes(edge.bytes)}, ${format.bytes(edge.copied)} copied`)),
    edge.copied && !isPast(a, b) ? svg("text", labelPlace(a, b), format.bytes(edge.copied)) : null];
  });
  const boxes = nodes.map((node) => nodeBox(model, node, choose));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${nodes.length} parts of the network` }, lines, boxes);
};

const nodeBox = (model, node, choose) => {
  const parts = [];
  let x = node.x;
  node.times.forEach((ns, device) => {
    if (!ns && !(node.total === 0 && model.devicesOf(node.first).includes(device))) return;
    const size = node.total ? (NODE_WIDTH * ns) / node.total : NODE_WIDTH;
    parts.push(svg("rect", { x, y: node.y, width: size, height: NODE_HEIGHT, fill: `url(#fill-${device})` }));
    x += size;
  });
  const text = nodeText(model, node);
  const isCritical = node.critical > 0;
  const described = svg("desc", null, text);
  const act = () => choose(node);
  const label = (dy, content, weight) => {
    const most = weight > 400 ? 31 : 34;
    const shown = content.length > most ? `${content.slice(0, most - 1)}\u2026` : content;
    return [svg("rect", { x: node.x + 5, y: node.y + dy - 12, width: Math.min(NODE_WIDTH - 10, shown.length * (weight > 400 ? 7.6 : 6.9) + 6), height: 16, style: "fill: #ffffff; fill-opacity: 0.72" }),
      svg("text", { x: node.x + 8, y: node.y + dy, "font-weight": weight }, shown)];
  };
  return svg("g", { class: "node", tabindex: "0", role: "button", onclick: act,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } },
    onpointermove: (event) => tip.show(event, text), onpointerleave: () => tip.hide() },
  described, parts,
  svg("rect", { class: "frame", x: node.x, y: node.y, width: NODE_WIDTH, height: NODE_HEIGHT, style: `fill: none; stroke: var(${isCritical ? "--accent" : "--soft"})`, "stroke-width": isCritical ? 2.5 : 1 }),
  label(18, node.name, 600), label(37, `${format.ns(node.total)}, ${node.tree ? `${node.end - node.first} tasks, ` : ""}${whereText(model, node)}`, 400));
};

const whereText = (model, node) => {
  const used = node.times.map((ns, device) => [ns, device]).filter(([ns]) => ns).sort((a, b) => b[0] - a[0]);
  if (!used.length) return model.deviceNames(node.first);
  return used.slice(0, 3).map(([, device]) => model.devices[device].name).join("+");
};

const nodeText = (model, node) => {
  const lines = [node.name];
  lines.push(node.tree ? format.count(node.end - node.first, "task") : model.op(node.first));
  node.times.forEach((ns, device) => { if (ns) lines.push(`${model.devices[device].name}: ${format.ns(ns)}`); });
  if (node.critical) lines.push(`on the critical path for ${format.ns(node.critical)}`);
  return lines.join("\n");
};

const graphTable = (model, { nodes }) => table("What is shown above",
  ["part", ">tasks", "where", ">time", ">on the critical path", ">copied out"],
  nodes.map((node) => [node.name, String(node.end - node.first), whereText(model, node), format.ns(node.total), format.ns(node.critical),
    format.bytes(node.copied)]));
