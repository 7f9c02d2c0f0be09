/* Numbers as text, by the same rules as the tables of the command line. */
const significant = (value) => {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(digits, 6));
};
const scaled = (value, units) => {
  let [size, unit] = units[0];
  for (const [nextSize, nextUnit] of units) {
    if (Math.abs(value) >= nextSize) [size, unit] = [nextSize, nextUnit];
  }
  return `${significant(value / size)} ${unit}`;
};
const format = {
  ns: (value) => {
    if (value === null || value === undefined) return "-";
    return scaled(value, [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]]);
  },
  /* With its sign, for differences. */
  change: (value) => `${value > 0 ? "+" : value < 0 ? "\u2212" : "\u00b1"}${format.ns(Math.abs(value))}`,
  bytes: (value) =>
    scaled(value, [[1, "B"], [1024, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"]]),
  rate: (value) =>
    scaled(value, [[1, "B/s"], [1e3, "kB/s"], [1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]]),
  share: (part, whole) => {
    if (!whole) return "-";
    const percent = (100 * part) / whole;
    return `${percent !== 0 && Math.abs(percent) < 9.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
  },
  count: (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`,
};
const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
/* About `count` round numbers from `low` to `high`. */
const ticks = (low, high, count) => {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
};
