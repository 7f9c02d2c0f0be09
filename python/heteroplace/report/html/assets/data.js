/* The data of the page (written by encode.py), and what all panels look up in it. */
const RUN = 0, COPY = 1, LOAD = 2, COLLECTIVE = 3;
const KIND_NAMES = ["task", "copy", "load of weights", "collective"];

const inflate = async (text) => {
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

/* The values that were written as differences. */
const summed = (deltas, before = 0) => deltas.map((delta) => { before += delta; return before; });

class Model {
  constructor(data) {
    Object.assign(this, data);
    this.readTensors(data);
    const readers = summed(data.pairs[0]);
    this.pairs = readers.map((reader, i) => [reader - data.pairs[1][i], reader]);
    this.devices = data.cluster.devices.map(([name, kind, target, memory], id) => ({
      id, name, kind, target, memory, host: data.cluster.memories[memory][2],
    }));
    this.memories = data.cluster.memories.map(([name, bytes, host]) => ({ name, bytes, host }));
    this.hosts = [...new Set(this.memories.map((memory) => memory.host))];
    this.predicted = data.runs[0];
    this.measuredRun = data.runs[1] || null;
    this.runs.forEach((run) => this.index(run));
    this.taskIds = new Map(data.tasks.name.map((name, id) => [name, id]));
    this.stepsOf = data.tasks.name.map(() => []);
    data.plan.kind.forEach((kind, step) => {
      if (kind === RUN || kind === COLLECTIVE) this.stepsOf[data.plan.subject[step]].push(step);
    });
    this.movesOf = new Map(data.moves.tasks.map((task, row) => [task, data.moves.ns[row]]));
    this.objective = data.result.item === null ? data.result.makespan : data.result.item;
    this.isThroughput = data.result.item !== null;
  }

  readTensors({ tensors, tasks, plan }) {
    tensors.producer = summed(tensors.producer);
    tensors.consumers = tensors.consumers.map((deltas, tensor) => summed(deltas, tensors.producer[tensor]));
    tensors.name = tensors.name.map((name, tensor) => {
      const maker = tasks.name[tensors.producer[tensor]];
      return name === "" ? maker : typeof name === "number" ? `${maker}.${name}` : name;
    });
    plan.bytes = plan.bytes.map((bytes, step) => (bytes < 0 ? tensors.bytes[plan.subject[step]] : bytes));
  }

  /* Columns of all spans in the order of time; by step its first span, by lane its spans. */
  index(run) {
    const spans = [];
    run.step.forEach((deltas, lane) => {
      const steps = summed(deltas);
      let end = 0;
      steps.forEach((step, i) => {
        const start = end + run.pause[lane][i], length = run.length[lane][i];
        end = start + length;
        spans.push({ step, lane, start, length });
      });
    });
    spans.sort((a, b) => a.start - b.start || a.length - b.length || a.step - b.step);
    for (const name of ["step", "lane", "start", "length"]) run[name] = spans.map((span) => span[name]);
    run.spanOf = new Map();
    run.ofLane = run.lanes.map(() => []);
    run.step.forEach((step, span) => {
      if (!run.spanOf.has(step)) run.spanOf.set(step, span);
      run.ofLane[run.lane[span]].push(span);
    });
    run.isCritical = new Set(run.critical.map(([step]) => step));
  }

  stepName(step) {
    const kind = this.plan.kind[step], subject = this.plan.subject[step];
    if (kind === RUN || kind === COLLECTIVE) return this.tasks.name[subject];
    const [src, dst] = this.plan.place[step].map((memory) => this.memories[memory].name);
    const what = kind === COPY ? this.tensors.name[subject]
      : subject.map((task) => this.tasks.name[task]).join(", ");
    return `${what} ${src} \u2192 ${dst}`;
  }

  /* The device whose colour a step has; -1: a transfer. */
  deviceOf(step) {
    if (this.plan.kind[step] === RUN) return this.plan.place[step];
    return this.plan.kind[step] === COLLECTIVE ? this.plan.place[step][0] : -1;
  }

  typeOf(tensor) { return this.tensors.types[this.tensors.type[tensor]] || format.bytes(this.tensors.bytes[tensor]); }

  /* Shapes of what a task reads and makes. */
  shapes(task) {
    if (!this.readsOf) {
      this.readsOf = this.tasks.name.map(() => []);
      this.makesOf = this.tasks.name.map(() => []);
      this.tensors.consumers.forEach((readers, tensor) => readers.forEach((reader) => this.readsOf[reader].push(tensor)));
      this.tensors.producer.forEach((maker, tensor) => { if (maker >= 0) this.makesOf[maker].push(tensor); });
    }
    const text = (tensors) => tensors.slice(0, 3).map((tensor) => this.typeOf(tensor)).join(", ")
      + (tensors.length > 3 ? ` and ${tensors.length - 3} more` : "");
    return `${text(this.readsOf[task]) || "constants"} \u2192 ${text(this.makesOf[task]) || "nothing"}`;
  }

  opType(task) { return this.tasks.op_types[this.tasks.op[task]]; }

  op(task) { return this.tasks.ops[this.tasks.op[task]]; }

  devicesOf(task) {
    const found = this.tasks.device[task];
    return Array.isArray(found) ? found : [found];
  }

  deviceNames(task) {
    return this.devicesOf(task).map((device) => this.devices[device].name).join("+") || "nowhere";
  }

  items(step) {
    const found = this.plan.item_sets[this.plan.items[step]];
    return this.result.items > 1 && this.plan.kind[step] !== LOAD ? found : [];
  }

  guard(step) { return this.plan.guards[this.plan.guard[step]]; }

  /* {ns, source, spread, reason, error} of a task on a device, for a batch of that size. */
  cost(task, device, batch = 1) {
    const row = Math.max(0, this.costs.batches.indexOf(batch));
    const cell = task * this.devices.length + device;
    const ns = this.costs.ns[row][cell];
    const [source, spread, reason, error] = this.costs.details[this.costs.detail[row][cell]];
    return { ns: ns < 0 ? null : ns, source, spread, reason, error };
  }

  /* What a task takes where the plan has it, all its items together. */
  spent(task, run = this.predicted) {
    let total = 0;
    for (const step of this.stepsOf[task]) {
      if (run.spanOf.has(step)) total += run.length[run.spanOf.get(step)];
    }
    return total;
  }
}
