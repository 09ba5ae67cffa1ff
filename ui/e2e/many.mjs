// A server of very many series: range queries get their response here, while everything else goes to the real server behind it.
import { createServer, request } from "node:http";
import { acceptsColumns, begin, COLUMNS, finish, series } from "./columns.mjs";

/** Series `s` at step `i`. Every series crosses others, and the last values grow with `s`. */
export const valueOf = (s, i) => (s + Math.sin(i / 20 + s) * 400 + 1000).toFixed(6);

export const labelsOf = (s) => ({ __name__: "many", instance: `10.0.${s >> 8}.${s & 255}:9100`, job: "shop", pod: `shop-${(s * 2654435761 >>> 0).toString(36)}`, shard: String(s) });

/** What a query's address requests, in seconds. */
function steps(url) {
  const [start, end, step] = ["start", "end", "step"].map((k) => Number(url.searchParams.get(k)));
  return { start, step, count: Math.floor((end - start) / step + 1e-9) + 1 };
}

const drained = (res) => new Promise((wake) => {
  const done = () => { res.off("drain", done); res.off("close", done); wake(); };
  res.on("drain", done);
  res.on("close", done);
});

/** The same as columns, which the page prefers. */
async function rangeColumns(count, url, res) {
  const { start, step, count: n } = steps(url);
  res.writeHead(200, { "Content-Type": COLUMNS });
  res.write(begin({ start: start * 1000, step: step * 1000, steps: n }));
  for (let s = 0; s < count; s += 20) {
    const list = Array.from({ length: Math.min(20, count - s) }, (_, k) => ({ metric: labelsOf(s + k), samples: Array.from({ length: n }, (_, i) => [i, Number(valueOf(s + k, i))]) }));
    if (!res.write(series(list))) await drained(res);
    if (res.destroyed) return;
  }
  res.end(finish('{"status":"success","data":{"resultType":"matrix","result":[]}}', count, count * n));
}

async function range(count, url, res) {
  const { start, step, count: n } = steps(url);
  res.writeHead(200, { "Content-Type": "application/json" });
  res.write('{"status":"success","data":{"resultType":"matrix","result":[');
  for (let s = 0; s < count; s++) {
    const values = Array.from({ length: n }, (_, i) => `[${start + i * step},"${valueOf(s, i)}"]`);
    const text = `${s > 0 ? "," : ""}{"metric":${JSON.stringify(labelsOf(s))},"values":[${values.join()}]}`;
    if (!res.write(text)) await drained(res);
    if (res.destroyed) return;
  }
  res.end("]}}");
}

function instant(count, url, res) {
  const time = Number(url.searchParams.get("time"));
  res.writeHead(200, { "Content-Type": "application/json" });
  const result = Array.from({ length: count }, (_, s) => ({ metric: labelsOf(s), value: [time, valueOf(s, 0)] }));
  res.end(JSON.stringify({ status: "success", data: { resultType: "vector", result } }));
}

function forward(base, req, res) {
  const up = request(base + req.url, { method: req.method, headers: { ...req.headers, host: new URL(base).host } }, (r) => {
    res.writeHead(r.statusCode, r.headers);
    r.pipe(res);
  });
  up.on("error", () => res.destroy());
  res.on("close", () => up.destroy()); // a response without an end would keep this process
  req.pipe(up);
}

/** A server in front of `base`: `take` gets the address, the response and the request, and responds to what it returns true for. */
export async function serverBefore(base, take) {
  const server = createServer((req, res) => {
    if (!take(new URL(req.url, base), res, req)) forward(base, req, res);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => { server.closeAllConnections(); server.close(); } };
}

/** Responds to queries of `many` with `count` series, in the form that the page prefers unless `json` is true. */
export function manyServer(base, count, json = false) {
  return serverBefore(base, (url, res, req) => {
    if (url.searchParams.get("query") !== "many") return false;
    if (url.pathname.endsWith("/api/v1/query_range")) { void (acceptsColumns(req) && !json ? rangeColumns : range)(count, url, res); return true; }
    if (url.pathname.endsWith("/api/v1/query")) { instant(count, url, res); return true; }
    return false;
  });
}

/** A flame graph of so many boxes, as the API has it: sixty levels, each box with some callees, of some hundred functions. */
export function flameOf(count) {
  const names = ["total", ...Array.from({ length: 800 }, (_, i) => `example.com/shop/part${i % 37}.(*Type${i % 11}).method${i}`)];
  const levels = [[{ start: 0, total: 1e12 }]];
  let left = count - 1;
  for (let depth = 1; left > 0; depth++) {
    const row = [];
    for (const p of levels[depth - 1]) {
      const children = depth < 8 ? 3 : (p.start / 1e3) % 5 < 1 ? 2 : 1;
      const each = Math.floor((p.total * 0.98) / children);
      for (let c = 0; c < children && left > 0 && each > 0; c++, left--) row.push({ start: p.start + c * each, total: each });
    }
    levels.push(row);
  }
  let n = 0;
  return {
    names, total: String(1e12), maxSelf: "1",
    levels: levels.map((row, depth) => {
      let end = 0;
      return { values: row.flatMap(({ start, total }) => { const v = [start - end, total, Math.floor(total * 0.02), depth === 0 ? 0 : 1 + (n++ * 7) % 800].map(String); end = start + total; return v; }) };
    }),
  };
}
