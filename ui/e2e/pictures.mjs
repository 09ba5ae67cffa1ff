// The pictures of README.md. Time and responses are made here, so that the same page gives the same bytes; only
// `make pictures` writes them where the README has them. Pictures named why-SCHEME-NUMBER-HUNDREDTHS are the frames of the
// moving picture, which test/pictures joins; the last number is how long a frame is shown.
import { screenshot, until } from "./browser.mjs";

const NOW = Date.UTC(2026, 0, 31, 14, 0, 0);
const TYPE = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const FERULA = { alerts: true, config: true, flames: true, notifications: false, profiles: true, rules: true, sd: true, stores: false, targets: true, tsdb: true };

/** Functions with what each takes itself, before and then, and what it calls. */
const TREE = ["total", 0, 0, [
  ["main.main", 1, 1, [
    ["shop/server.(*Server).Serve", 3, 3, [
      ["net/http.(*conn).serve", 6, 6, [
        ["shop/handler.Checkout", 9, 10, [
          ["shop/cart.(*Cart).Total", 14, 15, [["shop/price.Lookup", 11, 12, [["runtime.mapaccess2_faststr", 7, 8, []]]]]],
          ["shop/tax.(*Table).Rate", 4, 88, [["regexp.MustCompile", 2, 61, [["regexp/syntax.Parse", 3, 74, [["runtime.mallocgc", 2, 38, [["runtime.nextFreeFast", 1, 17, []]]]]], ["regexp.compileOnePass", 1, 26, []]]]]],
          ["encoding/json.Marshal", 12, 13, [["encoding/json.structEncoder.encode", 19, 20, [["reflect.Value.Field", 8, 8, []]]]]],
        ]],
        ["shop/handler.Search", 8, 7, [["shop/index.(*Index).Query", 21, 18, [["shop/index.intersect", 26, 22, [["sort.pdqsort", 13, 11, []]]]]], ["compress/gzip.(*Writer).Write", 17, 15, []]]],
      ]],
    ]],
  ]],
  ["runtime.gcBgMarkWorker", 4, 9, [["runtime.gcDrain", 11, 27, [["runtime.scanobject", 16, 41, []]]]]],
  ["runtime.mcall", 2, 2, [["runtime.schedule", 6, 6, [["runtime.findRunnable", 9, 8, []]]]]],
]];

const UNIT = 2e7; // nanoseconds

/** The tree as the API has it: by level, each box after the end of the one before it. `sides` is [0] or, for a difference, [0, 1]. */
function flamegraph(sides) {
  const names = [];
  const levels = [];
  const sum = ([, a, b, below], side) => [a, b][side] + below.reduce((n, c) => n + sum(c, side), 0);
  const ends = [];
  const add = (node, depth, at) => {
    const [name, a, b, below] = node;
    if (!names.includes(name)) names.push(name);
    levels[depth] ??= { values: [] };
    ends[depth] ??= sides.map(() => 0);
    const self = [a, b];
    sides.forEach((side, k) => levels[depth].values.push(String((at[k] - ends[depth][k]) * UNIT), String(sum(node, side) * UNIT), String(self[side] * UNIT)));
    levels[depth].values.push(String(names.indexOf(name)));
    ends[depth] = sides.map((side, k) => at[k] + sum(node, side));
    let next = sides.map((side, k) => at[k] + self[side]);
    for (const c of below) { add(c, depth + 1, next); next = sides.map((side, k) => next[k] + sum(c, side)); }
  };
  add(TREE, 0, sides.map(() => 0));
  const totals = sides.map((side) => String(sum(TREE, side) * UNIT));
  return sides.length === 2 ? { names, levels, leftTicks: totals[0], rightTicks: totals[1] } : { names, levels, total: totals[0], maxSelf: String(30 * UNIT) };
}

const json = (body) => ({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
const success = (data) => json({ status: "success", data });

function lines(request) {
  const q = new URL(request.url()).searchParams;
  const [start, end, step] = ["start", "end", "step"].map((k) => Number(q.get(k)));
  const spike = q.get("query").includes("quantile");
  const n = Math.floor((end - start) / step) + 1;
  const values = (base, k) => Array.from({ length: n }, (_, i) => {
    const slow = spike && i > n * 0.62 && i < n * 0.8 ? 3.4 - k * 0.5 : 1;
    return [start + i * step, String(base * slow * (1 + 0.16 * Math.sin(i / 17 + k) + 0.07 * Math.sin(i / 3.1 + 2 * k) + 0.04 * Math.sin(i * 1.7 + k)))];
  });
  const handlers = spike ? ["/checkout"] : ["/cart", "/checkout", "/login", "/search", "/stock"];
  const all = handlers.map((handler, k) => ({ metric: { handler, job: "shop" }, values: values(spike ? 0.12 : 40 * (5 - k) + 11, k) }));
  const threshold = q.get("query").match(/"threshold", "([^"]*)"/)?.[1];
  return threshold ? [...all, { metric: { threshold }, values: all[0].values.map(([at]) => [at, threshold]) }] : all;
}

async function prepare(page, features = {}) {
  await page.clock.setFixedTime(NOW);
  const method = (name, body) => page.route(`**/querier.v1.QuerierService/${name}`, (r) => r.fulfill(json(typeof body === "function" ? body(r.request().postDataJSON()) : body)));
  await page.route("**/api/v1/**", (r) => r.fulfill(success({})));
  await page.route("**/api/v1/status/buildinfo", (r) => r.fulfill(success({ program: "ferula" })));
  await page.route("**/api/v1/status/features", (r) => r.fulfill(success({ ferula: { ...FERULA, ...features } })));
  await page.route("**/api/v1/query_range?*", (r) => r.fulfill(success({ resultType: "matrix", result: lines(r.request()) })));
  await page.route("**/api/v1/stores", (r) => r.fulfill(success({ sidecar: ["10.0.0.11:10901", "10.0.0.12:10901"].map(store), store: ["10.0.0.20:10901"].map(store) })));
  await method("ProfileTypes", { profileTypes: [{ ID: TYPE, name: "process_cpu", sampleType: "cpu", sampleUnit: "nanoseconds" }] });
  await method("LabelNames", { names: ["job", "pod", "service_name"] });
  await method("LabelValues", ({ name }) => ({ names: name === "service_name" ? ["shop"] : name === "job" ? ["shop"] : ["a", "b"] }));
  await method("SelectSeries", ({ start, end, step }) => ({ series: [{ labels: [], points: points(Number(start), Number(end), step * 1000) }] }));
  await method("SelectMergeStacktraces", { flamegraph: flamegraph([0]) });
  await method("Diff", { flamegraph: flamegraph([0, 1]) });
}

const store = (name) => ({ name, lastError: null, labelSets: [{ replica: name.slice(-7, -6) }], minTime: NOW - 86_400_000, maxTime: NOW, lastCheck: new Date(NOW - 3000).toISOString() });

/** The last hour is slow here: the latency of a query and the CPU of the profiles rise together. */
const SLOW = [NOW - 0.38 * 3_600_000, NOW - 0.2 * 3_600_000];

function points(start, end, step) {
  return Array.from({ length: Math.floor((end - start) / step) + 1 }, (_, i) => {
    const slow = start + i * step > SLOW[0] && start + i * step < SLOW[1] ? 2.6 : 1;
    const value = slow * (4e8 + 5e7 * Math.sin(i / 9) + 3e7 * Math.sin(i / 2.3));
    const timestamp = String(start + i * step);
    return { timestamp, value, exemplars: i % 8 === 3 ? [{ timestamp, profileId: `profile-${i}`, value: String(Math.round(value)) }] : [] };
  });
}

/** What is drawn late, such as fonts and the editor, is there. */
async function settled(page) {
  await page.evaluate(() => document.fonts.ready);
  await page.mouse.move(2, 2);
  await page.waitForTimeout(400);
  // A caret blinks.
  await page.evaluate(() => document.activeElement?.blur());
  // How long a response took is the only figure of the page that is not made here.
  await page.evaluate(() => document.querySelectorAll(".cost .popover > button b").forEach((b) => { b.textContent = "12 ms"; }));
}

const shot = async (page, name, scheme) => { await settled(page); await screenshot(page, `${name}-${scheme}`); };

async function spike(page, base, scheme) {
  await page.goto(`${base}/query?range=1h&expr=${encodeURIComponent('histogram_quantile(0.99, sum by (le, handler, job) (rate(http_request_duration_seconds_bucket{handler="/checkout"}[1m])))')}`);
  await page.locator(".cm-content").waitFor();
  await page.locator(".brush-hint").waitFor();
  const over = await page.locator(".u-over").boundingBox();
  const y = over.y + over.height / 2;
  let frames = 0;
  const frame = (hundredths) => screenshot(page, `why-${scheme}-${frames++}-${hundredths}`);
  await settled(page);
  await frame(150);
  await page.keyboard.down("Shift");
  await page.mouse.move(over.x + over.width * 0.63, y);
  await page.mouse.down();
  for (const to of [0.67, 0.71, 0.75, 0.79]) {
    await page.mouse.move(over.x + over.width * to, y);
    await frame(12);
  }
  await page.mouse.up();
  await page.keyboard.up("Shift");
  await frame(150);
  await shot(page, "spike", scheme);
  await page.locator(".plot").focus();
  await page.keyboard.press("d");
  await page.locator(".diff-legend").waitFor();
  await page.locator(".flames canvas").waitFor();
  await page.locator(".diff-legend").evaluate((e) => e.closest("section, .card").scrollIntoView());
  await settled(page);
  await frame(250);
  const box = await page.locator(".flames canvas").boundingBox();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 8);
  await shot(page, "reason", scheme);
}

/** The spike of the graph as one alert: pending for two minutes, then firing. */
function tested(request) {
  const q = new URL(request.url()).searchParams;
  const [start, end] = [Number(q.get("start")), Number(q.get("end"))];
  const at = (share) => Math.round(start + share * (end - start));
  const labels = { alertname: "Backtest", handler: "/checkout", job: "shop" };
  const sent = (share, resolved) => ({ at: at(share), labels, annotations: {}, startsAt: "", endsAt: "", resolved, resends: resolved ? 14 : 4 });
  const interval = (state, from, to) => ({ state, start: at(from), end: at(to), value: "0.41" });
  return {
    start, end, groups: [{ name: "", interval: 15, rules: [{
      name: "Backtest", query: q.get("expr"), type: "alerting", for: 120, keepFiringFor: 0, truncated: false,
      alerts: [{ labels, intervals: [interval("pending", 0.625, 0.66), interval("firing", 0.66, 0.8)] }],
      notifications: [sent(0.66, false), sent(0.805, true)], counts: { alerts: 1, firings: 1, notifications: 2, resends: 18 },
    }] }],
  };
}

export const checks = Object.fromEntries(["light", "dark"].map((scheme) => [`pictures of the README, ${scheme}`, async ({ page, base }) => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
  await prepare(page);
  await page.goto(`${base}/query?range=1h&expr=${encodeURIComponent('sum by (handler, job) (rate(http_requests_total{job="shop"}[1m]))')}`);
  await page.locator(".cm-content").waitFor();
  await page.locator(".legend tbody tr").first().waitFor();
  await shot(page, "query", scheme);
  await spike(page, base, scheme);
  await page.route("**/api/v1/rules/backtest?*", (r) => r.fulfill(success(tested(r.request()))));
  await page.goto(`${base}/backtest?range=1h&for=2m&expr=${encodeURIComponent('histogram_quantile(0.99, sum by (le, handler, job) (rate(http_request_duration_seconds_bucket{handler="/checkout"}[1m]))) > 0.25')}`);
  await page.locator(".band.firing").first().waitFor({ state: "attached" });
  await page.locator(".legend tbody tr").first().waitFor();
  await shot(page, "backtest", scheme);
  await page.goto(`${base}/profiles?range=30m&view=both`);
  await page.locator(".functions tbody tr").first().waitFor();
  await page.locator("#compare").click();
  await page.locator(".diff-legend").waitFor();
  await page.locator(".functions tbody tr").first().waitFor();
  await page.locator(".diff-legend").evaluate((e) => e.closest("section, .card").scrollIntoView());
  await shot(page, "diff", scheme);
  await prepare(page, { stores: true, profiles: false });
  await page.goto(`${base}/query?range=1h&dedup=1&expr=${encodeURIComponent("sum by (handler, job) (rate(http_requests_total[5m]))")}`);
  await page.locator(".cm-content").waitFor();
  await page.getByRole("button", { name: "Stores and resolution" }).click();
  await until("the stores", () => page.locator(".store-list").getByText("10.0.0.20:10901").isVisible());
  await shot(page, "stores", scheme);
}]));
