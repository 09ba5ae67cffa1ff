// A range query's response as columns (docs/formats/columns.md): made for servers of tests, and read from what a server has sent.
export const COLUMNS = "application/vnd.ferula.columns.v1";

export const acceptsColumns = (req) => (req.headers.accept ?? "").includes(COLUMNS);

const [GRID, SERIES, TEXT, END] = [1, 2, 3, 4];
const up8 = (n) => Math.ceil(n / 8) * 8;

function section(kind, content) {
  const b = Buffer.alloc(8 + up8(content.length));
  b.writeUInt32LE(kind, 0);
  b.writeUInt32LE(content.length, 4);
  content.copy(b, 8);
  return b;
}

/** The first bytes. `start` and `step` in ms. */
export function begin({ start, step, steps }) {
  const b = Buffer.alloc(24);
  b.writeBigInt64LE(BigInt(start), 0);
  b.writeBigInt64LE(BigInt(step), 8);
  b.writeUInt32LE(steps, 16);
  return Buffer.concat([Buffer.from("FERULAC1"), section(GRID, b)]);
}

/** A section of `{ metric, samples }`, whose samples are `[index of the step, number]`. */
export function series(list) {
  const text = Buffer.from(JSON.stringify(list.map((s) => s.metric)));
  const runs = list.map(({ samples }) => {
    const of = [];
    for (const [i] of samples) {
      const last = of.at(-1);
      if (last && last[0] + last[1] === i) last[1]++;
      else of.push([i, 1]);
    }
    return of;
  });
  const [runCount, samples] = [runs.flat().length, list.reduce((n, s) => n + s.samples.length, 0)];
  const countsAt = up8(16 + text.length);
  let at = up8(countsAt + 4 * list.length + 8 * runCount);
  const b = Buffer.alloc(at + 8 * samples);
  [list.length, runCount, samples, text.length].forEach((n, i) => b.writeUInt32LE(n, 4 * i));
  text.copy(b, 16);
  [...runs.map((r) => r.length), ...runs.flat(2)].forEach((n, i) => b.writeUInt32LE(n, countsAt + 4 * i));
  for (const s of list) for (const [, v] of s.samples) at = b.writeDoubleLE(v, at);
  return section(SERIES, b);
}

/** The last bytes: the response without its series, and how many series and samples were before. */
export function finish(rest, count, samples) {
  const b = Buffer.alloc(16);
  b.writeBigInt64LE(BigInt(count), 0);
  b.writeBigInt64LE(BigInt(samples), 8);
  return Buffer.concat([section(TEXT, Buffer.from(rest)), section(END, b)]);
}

/** A whole body. */
export function encode(grid, list, rest = '{"status":"success","data":{"resultType":"matrix","result":[]}}', perSection = 256) {
  const parts = [begin(grid)];
  for (let i = 0; i < list.length; i += perSection) parts.push(series(list.slice(i, i + perSection)));
  parts.push(finish(rest, list.length, list.reduce((n, s) => n + s.samples.length, 0)));
  return Buffer.concat(parts);
}

const sampleText = (v) => (v === Infinity ? "+Inf" : v === -Infinity ? "-Inf" : String(v));

/** A whole body as the JSON that a server sends otherwise. */
export function decode(bytes) {
  const body = Buffer.from(bytes);
  if (body.toString("latin1", 0, 8) !== "FERULAC1") throw new Error("no columns");
  let [text, start, step] = ["", 0, 0];
  const result = [];
  for (let at = 8; at < body.length;) {
    const [kind, length] = [body.readUInt32LE(at), body.readUInt32LE(at + 4)];
    const b = body.subarray(at + 8, at + 8 + length);
    at += 8 + up8(length);
    if (kind === GRID) [start, step] = [Number(b.readBigInt64LE(0)), Number(b.readBigInt64LE(8))];
    else if (kind === TEXT) text += b.toString();
    else if (kind === END) return withSeries(JSON.parse(text), result);
    else {
      const [count, runs, , textLength] = [0, 4, 8, 12].map((i) => b.readUInt32LE(i));
      const labels = JSON.parse(b.toString("utf8", 16, 16 + textLength));
      const countsAt = up8(16 + textLength);
      let run = countsAt + 4 * count;
      let sample = up8(run + 8 * runs);
      for (let s = 0; s < count; s++) {
        const values = [];
        for (let r = b.readUInt32LE(countsAt + 4 * s); r > 0; r--, run += 8) {
          const [first, n] = [b.readUInt32LE(run), b.readUInt32LE(run + 4)];
          for (let i = first; i < first + n; i++, sample += 8) values.push([(start + i * step) / 1000, sampleText(b.readDoubleLE(sample))]);
        }
        result.push(values.length > 0 ? { metric: labels[s], values } : { metric: labels[s] });
      }
    }
  }
  throw new Error("the columns have no end");
}

const withSeries = (response, result) => ({ ...response, data: { ...response.data, result } });
