// What must hold on every page: nothing that axe-core objects to, no text that becomes markup, few requests to a server that
// fails, and a small first graph.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";
import { check, screenshot, until } from "./browser.mjs";
import { COLUMNS, encode } from "./columns.mjs";
import { serverBefore } from "./many.mjs";
import { respond, total } from "./profiles.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const DIST = new URL("../../internal/httpapi/ui/dist/", import.meta.url);

const PAGES = [
  ["/query?expr=up&range=5m", ".legend tbody tr"], ["/query?expr=up&tab=table", "table.result"], ["/query?expr=sum(up)&tab=explain", ".tree"], ["/profiles?range=5m", ".flames canvas"],
  ["/profiles?range=5m&view=both", ".functions tbody tr"],
  ["/profiles?range=5m&over=services", ".services tbody tr"], ["/profiles?range=5m&over=heat", ".heatmap canvas"], ["/profiles?range=5m&over=spans", ".panel .empty"], ["/alerts", ".page-head"], ["/rules", ".page-head"], ["/alertmanager-discovery", ".empty"], ["/blocks", ".blocks-tools"], ["/query?expr=up&range=5m&exemplars=1", ".plot canvas"], ["/targets", "table.targets"], ["/service-discovery", "table.discovery"], ["/status", ".facts"],
  ["/tsdb-status", ".top-list"], ["/flags", "table.flags"], ["/config", ".config"], ["/stores", ".empty"],
];

const HOSTILE = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"'\`{{7*7}}\u202e`;

const json = (status, body) => ({ status, contentType: "application/json", body: JSON.stringify(body) });
const success = (data) => json(200, { status: "success", data });

async function axe(page) {
  // Evaluated by the debugger, which the page's policy does not apply to.
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 140)).join(" | ")}`);
  });
}

export const checks = {
  async "axe-core finds nothing on any page, in both themes"(tab) {
    const { page } = tab;
    tab.tolerated.push(/status of 4\d\d/);
    const found = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      for (const [path, selector] of PAGES) {
        await page.goto(tab.base + path);
        await page.locator(selector).first().waitFor();
        if (path.startsWith("/query")) await page.locator(".cm-content").waitFor();
        for (const v of await axe(page)) found.push(`${colorScheme} ${path} ${v}`);
      }
    }
    check(found.length === 0, found.join("\n"));
  },

  async "hostile labels and names stay text in every view"(tab) {
    const { page } = tab;
    await respond(page);
    const metric = { __name__: "x", [HOSTILE]: HOSTILE };
    const t = Date.now() / 1000;
    await page.route("**/api/v1/status/features", (r) => r.fulfill(success({ ferula: { alerts: true, profiles: true, rules: true, sd: true, stores: true, targets: true, tsdb: true } })));
    await page.route("**/api/v1/query_range?*", (r) => r.fulfill(json(200, { status: "success", warnings: [HOSTILE], data: { resultType: "matrix", result: [{ metric, values: [[Math.floor(t) - 60, "1"], [Math.floor(t) - 30, "2"]] }, { metric: { ...metric, b: "2" }, values: [[Math.floor(t) - 60, "1"]] }] } })));
    await page.route("**/api/v1/query?*", (r) => r.fulfill(success({ resultType: "vector", result: [{ metric, value: [t, HOSTILE] }] })));
    await page.route("**/api/v1/targets*", (r) => r.fulfill(success({ activeTargets: [{ discoveredLabels: metric, labels: metric, scrapePool: HOSTILE, scrapeUrl: HOSTILE, globalUrl: "javascript:window.hacked=1", lastError: HOSTILE, lastScrape: new Date().toISOString(), lastScrapeDuration: 1, health: "down" }], droppedTargets: [] })));
    await page.route("**/api/v1/rules*", (r) => r.fulfill(success({ groups: [{ name: HOSTILE, file: HOSTILE, interval: 1, rules: [{ type: "alerting", name: HOSTILE, query: HOSTILE, state: "firing", health: "err", lastError: HOSTILE, labels: metric, annotations: { [HOSTILE]: HOSTILE }, alerts: [{ labels: metric, annotations: { a: HOSTILE }, state: "firing", value: HOSTILE }] }] }] })));
    await page.route("**/api/v1/status/tsdb*", (r) => r.fulfill(success({ headStats: { numSeries: 1, numLabelPairs: 1, chunkCount: 1, minTime: 1, maxTime: 2 }, seriesCountByMetricName: [{ name: HOSTILE, value: 1 }] })));
    await page.route("**/api/v1/status/flags", (r) => r.fulfill(success({ [HOSTILE]: HOSTILE })));
    await page.route("**/api/v1/status/config", (r) => r.fulfill(success({ yaml: `a: ${HOSTILE}\n${HOSTILE}` })));
    await page.route("**/api/v1/alertmanagers", (r) => r.fulfill(success({ activeAlertmanagers: [{ url: HOSTILE }, { url: "javascript:window.hacked=1" }], droppedAlertmanagers: [] })));
    await page.route("**/api/v1/status/tsdb/blocks", (r) => r.fulfill(success({ blocks: [{ ulid: HOSTILE, minTime: 1, maxTime: 2, thanos: { labels: metric } }] })));
    await page.route("**/api/v1/query_exemplars?*", (r) => r.fulfill(success([{ seriesLabels: metric, exemplars: [{ labels: { trace_id: HOSTILE, [HOSTILE]: HOSTILE }, value: "1", timestamp: t - 60 }] }])));
    await page.route("**/api/v1/stores", (r) => r.fulfill(success({ [HOSTILE]: [{ name: HOSTILE, lastError: HOSTILE, labelSets: [metric], minTime: 1, maxTime: 2, lastCheck: new Date().toISOString() }] })));
    await page.route("**/querier.v1.QuerierService/SelectMergeStacktraces", (r) => r.fulfill(json(200, { flamegraph: { names: ["total", HOSTILE], total: "5", levels: [{ values: ["0", "5", "0", "0"] }, { values: ["0", "5", "5", "1"] }] } })));
    const hostile = [{ name: "service_name", value: HOSTILE }];
    await page.route("**/querier.v1.QuerierService/SelectSeries", (r) => r.fulfill(json(200, { series: [{ labels: hostile, points: [{ timestamp: r.request().postDataJSON().end, value: 5 }] }] })));
    await page.route("**/querier.v1.QuerierService/SelectHeatmap", (r) => { const { end } = r.request().postDataJSON(); return r.fulfill(json(200, { series: [{ slots: [{ timestamp: end, yMin: [1], counts: [1], exemplars: [{ timestamp: end, profileId: HOSTILE, spanId: HOSTILE, traceId: HOSTILE, value: "1", labels: hostile }] }] }] })); });
    for (const path of ["/profiles?over=services", "/profiles?over=heat&cell=1~2~1~1", "/profiles?over=spans&cell=1~2~1~1", "/query?expr=x&range=5m", "/query?expr=x&range=5m&exemplars=1", "/query?expr=x&tab=table", "/query?expr=x&tab=table&view=as%3Atext", "/query?expr=x&tab=explain", "/targets", "/service-discovery", "/alerts", "/rules", "/tsdb-status", "/blocks", "/alertmanager-discovery", "/flags", "/config", "/stores", "/profiles", "/profiles?view=both", `/profiles?view=both&function=${encodeURIComponent(HOSTILE)}`]) {
      await page.goto(tab.base + path);
      await page.locator("table, .legend, canvas, .rule, .yaml, .tree, .alertmanagers").first().waitFor();
      if (path.startsWith("/query?expr=x&range")) { const o = await page.locator(".u-over").boundingBox(); await page.mouse.move(o.x + o.width - 100, o.y + 50); }
      const bad = await page.evaluate(() => (window.hacked ? "ran" : document.querySelector("img, #app script") ? "became an element" : document.querySelector('a[href^="javascript:"]') ? "became a link" : ""));
      check(bad === "", `${path}: it ${bad}`);
    }
  },

  async "a server that fails gets few requests, and a sentence states what to do"(tab) {
    const { page } = tab;
    tab.tolerated.push(/status of \d\d\d|Failed to load resource|net::ERR/);
    const handlers = [401, 403, 404, 413, 429, 500, 502, 503, 504].map((status) => [String(status), (r) => r.fulfill({ status, contentType: "text/plain", body: "no" })]);
    handlers.push(["none", (r) => r.abort("connectionreset")], ["redirect", (r) => r.fulfill({ status: 302, headers: { location: "https://login.example/" } })], ["html", (r) => r.fulfill({ status: 200, contentType: "text/html", body: "<html>sign in</html>" })]);
    const few = (name) => ["401", "429", "500", "503", "none"].includes(name);
    const places = [["/query?expr=up&range=5m&refresh=1s", "**/api/v1/query_range?*", () => true], ["/profiles?range=5m&refresh=1s", "**/SelectMergeStacktraces", few], ["/targets", "**/api/v1/targets", few]];
    for (const [path, requested, wanted] of places) {
      for (const [name, handler] of handlers.filter(([n]) => wanted(n))) {
        let requests = 0;
        const route = (r) => { requests++; return handler(r); };
        await page.route(requested, route);
        await page.goto(tab.base + path);
        await page.locator(".notice.error strong").first().waitFor();
        const text = await page.locator(".notice.error").first().innerText();
        check(text.length > 30, `${path} ${name}: ${text}`);
        await page.waitForTimeout(3000);
        check(requests === 1, `${path} ${name}: ${requests} requests in three seconds of a refresh of one`);
        await page.unroute(requested, route);
      }
    }
  },

  async "half a response is an error that states it, and is requested once"(tab) {
    const { page } = tab;
    tab.tolerated.push(/net::ERR/);
    const whole = JSON.stringify({ status: "success", data: { resultType: "matrix", result: [{ metric: { a: "1" }, values: [[1, "2"]] }] } });
    const columns = encode({ start: 1000, step: 1000, steps: 1 }, [{ metric: { a: "1" }, samples: [[0, 2]] }]);
    const cut = (type, body) => (res) => { res.writeHead(200, { "Content-Type": type, "Content-Length": body.length }); res.write(body.slice(0, -20), () => res.destroy()); };
    const short = (type, body) => (res) => { res.writeHead(200, { "Content-Type": type }); res.end(body.slice(0, -20)); };
    const ways = { cut: cut("application/json", whole), short: short("application/json", whole), "cut columns": cut(COLUMNS, columns), "short columns": short(COLUMNS, columns) };
    for (const [name, respondWith] of Object.entries(ways)) {
      let requests = 0;
      const server = await serverBefore(tab.base, (url, res) => { if (!url.pathname.endsWith("/query_range")) return false; requests++; respondWith(res); return true; });
      tab.own.add(new URL(server.url).host);
      await page.goto(`${server.url}/query?expr=up&range=5m&refresh=1s`);
      await page.locator(".notice.error", { hasText: "ended before it was complete" }).waitFor();
      await page.waitForTimeout(3000);
      check(requests === 1, `${name}: ${requests} requests in three seconds of a refresh of one`);
      await page.goto("about:blank");
      server.close();
    }
  },

  async "a clock that differs is reported"(tab) {
    await tab.page.addInitScript(() => { const real = Date.now; Date.now = () => real() + 300_000; });
    await tab.page.goto(`${tab.base}/query?expr=up&range=15m`);
    await tab.page.locator(".banner", { hasText: "differ by 5m" }).waitFor();
  },

  async "the first graph needs no more than 75 kB, and all no more than 330"(tab) {
    const { page } = tab;
    const fetched = new Set(["/query"]);
    page.on("request", (r) => { const url = new URL(r.url()); if (url.protocol === "http:") fetched.add(url.pathname); });
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    await until("a line", () => page.evaluate(() => document.querySelector(".plot")?.plot?.chart.data[1]?.some((v) => v !== null)));
    const needed = new Set([...fetched, ...page.workers().map((w) => new URL(w.url()).pathname)]);
    // What the server has is what was built: each file counts once, whichever pages have loaded it.
    const sizes = new Map();
    for (const file of readdirSync(DIST, { recursive: true })) {
      if (!/\.(js|css|svg|html)$/.test(file)) continue;
      const path = file === "index.html" ? "/query" : `/${file.replaceAll("\\", "/")}`;
      const built = readFileSync(new URL(file, DIST));
      const served = Buffer.from(await (await fetch(tab.base + path)).arrayBuffer());
      check(path === "/query" ? served.length > 0 : served.equals(built), `${path}: the server has another file than the tree`);
      sizes.set(path, gzipSync(built, { level: 9 }).length);
    }
    const sum = (list) => list.reduce((n, [, size]) => n + size, 0);
    const first = [...sizes].filter(([p]) => needed.has(p) && !/editor|cm-/.test(p));
    const all = sum([...sizes]);
    check(first.some(([p]) => p.includes("worker")) && [...needed].every((p) => sizes.has(p) || !/\.(js|css|svg)$/.test(p)), `not every file is counted: ${[...needed].join(" ")}`);
    check(sum(first) > 30_000 && sum(first) <= 75_000, `the first graph took ${sum(first)} bytes: ${first.join(" ")}`);
    check(all > 200_000 && all <= 330_000, `all files have ${all} bytes`);
    console.log(`     first graph ${sum(first)} bytes, all files ${all} bytes, gzip`);
  },
};
