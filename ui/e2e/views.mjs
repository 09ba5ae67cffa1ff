// Checks of what leads from one place to another, and of views that other servers than `ferula serve` have.
import { readFileSync } from "node:fs";
import { check, drawn, runQuery, screenshot, until } from "./browser.mjs";
import { json, respond, total } from "./profiles.mjs";

const success = (data) => json({ status: "success", data });
const address = (page) => new URL(page.url()).searchParams;
const features = (page, ferula) => page.route("**/api/v1/status/features", (r) => r.fulfill(success({ ferula })));

const HOUR = 3_600_000;
const meta = (ulid, from, hours, more = {}) => ({ ulid, minTime: from, maxTime: from + hours * HOUR, version: 1, stats: { numSamples: 1200, numSeries: 30, numChunks: 60 }, compaction: { level: 1, sources: [ulid] }, ...more });
const thanos = (cluster, resolution) => ({ thanos: { labels: { cluster }, downsample: { resolution }, source: "compactor" } });

/** Exemplars of one line, a minute before the end of the range, with these labels each. */
async function exemplars(page, ...labels) {
  await page.route("**/api/v1/query_range?*", (r) => {
    const q = new URL(r.request().url()).searchParams;
    return r.fulfill(success({ resultType: "matrix", result: [{ metric: { handler: "/a" }, values: [[Number(q.get("start")), "0.1"], [Number(q.get("end")), "0.3"]] }] }));
  });
  await page.route("**/api/v1/query_exemplars?*", (r) => {
    const end = Number(new URL(r.request().url()).searchParams.get("end"));
    return r.fulfill(success([{ seriesLabels: { __name__: "h_bucket", le: "5", handler: "/a" }, exemplars: labels.map((l, i) => ({ labels: l, value: String(2.5 + i), timestamp: end - 60 - 30 * i })) }]));
  });
}

export const checks = {
  async "Alertmanagers are listed, and found by address"(tab) {
    const { page } = tab;
    await features(page, { alerts: true, rules: true, alertmanagers: true });
    await page.route("**/api/v1/alertmanagers", (r) => r.fulfill(success({ activeAlertmanagers: [{ url: "http://10.0.0.1:9093/api/v2/alerts" }, { url: "http://10.0.0.2:9093/api/v2/alerts" }], droppedAlertmanagers: [{ url: "http://10.0.0.3:9093/api/v2/alerts" }] })));
    await page.goto(`${tab.base}/alerts`);
    await page.getByRole("link", { name: "Alertmanagers" }).click();
    await page.locator(".alertmanagers", { hasText: "Alerts are sent to" }).waitFor();
    check((await page.locator(".alertmanagers li").count()) === 3, "not every Alertmanager is listed");
    check((await page.locator(".alertmanagers a").first().getAttribute("href")) === "http://10.0.0.1:9093", "the link does not open the Alertmanager's page");
    await screenshot(page, "alertmanagers");
    await page.getByLabel("Filter by address").fill("0.3:");
    await until("one", async () => (await page.locator(".alertmanagers li").count()) === 1 && address(page).get("find") === "0.3:");
    await page.reload();
    await until("one after reloading", async () => (await page.locator(".alertmanagers li").count()) === 1);
  },

  async "a querier's navigation has no page of Alertmanagers"(tab) {
    const { page } = tab;
    await features(page, { alerts: true, rules: true, alertmanagers: false, blocks: false, stores: true, tsdb: false });
    await page.goto(`${tab.base}/rules`);
    await page.getByRole("link", { name: "Rules", exact: true }).waitFor();
    await until("no entry", async () => (await page.getByRole("link", { name: "Alertmanagers" }).count()) === 0);
    await page.goto(`${tab.base}/status`);
    await page.getByRole("link", { name: "Stores" }).waitFor();
    check((await page.getByRole("link", { name: "Blocks" }).count()) === 0, "blocks are in the navigation");
  },

  async "the blocks of the server's TSDB are listed"(tab) {
    const { page } = tab;
    const from = Date.UTC(2026, 0, 31);
    await page.route("**/api/v1/status/tsdb/blocks", (r) => r.fulfill(success({ blocks: [meta("01AAAAAAAAAAAAAAAAAAAAAAAA", from, 2), meta("01BBBBBBBBBBBBBBBBBBBBBBBB", from + 2 * HOUR, 6, { compaction: { level: 2 } })] })));
    await page.goto(`${tab.base}/status`);
    await page.getByRole("link", { name: "Blocks" }).click();
    await page.locator(".block-table tbody tr").nth(1).waitFor();
    check((await page.locator(".block-table tbody tr").first().innerText()).includes("01BBBB"), "the newest block is not the first");
    check((await page.locator(".tracks rect").count()) === 2 && (await page.locator(".track").count()) === 2, "the timeline has other boxes");
    await screenshot(page, "blocks");
    await page.getByLabel("Filter by ULID").fill("level:2");
    await until("one block", async () => (await page.locator(".block-table tbody tr").count()) === 1 && address(page).get("find") === "level:2");
  },

  async "running queries are listed with their cost, and ended"(tab) {
    const { page } = tab;
    const one = (id, query) => ({ id, kind: "range", query, begun: "2026-01-09T10:00:00Z", seconds: 12.34, stage: "evaluating", client: "10.0.0.1:5000", userAgent: "Grafana/12", estimatedSamples: 5_000_000, series: 1200, samples: 144_000, chunkBytes: 3 << 20 });
    let queries = [one("7-1", "sum(rate(a[5m]))"), one("7-2", "count({b=~\".+\"})")];
    let cancelable = false;
    const ended = [];
    await page.route("**/api/v1/queries/running", (r) => r.fulfill(success({ cancelable, queries })));
    await page.route("**/api/v1/queries/running/*/cancel", (r) => {
      ended.push(`${r.request().method()} ${new URL(r.request().url()).pathname.split("/").at(-2)}`);
      queries = queries.slice(1);
      return r.fulfill(success({ id: "7-1" }));
    });
    await page.goto(`${tab.base}/queries`);
    const rows = page.locator("table.data tbody tr");
    await until("both queries", async () => (await rows.count()) === 2);
    const row = await rows.first().innerText();
    check(/sum\(rate\(a\[5m\]\)\)[\s\S]*10\.0\.0\.1:5000[\s\S]*evaluating[\s\S]*12\.3/.test(row), row);
    check((await page.getByRole("button", { name: "End" }).count()) === 0 && (await page.getByText("--web.enable-admin-api").count()) === 1, "a query can be ended without the admin API");
    cancelable = true;
    await page.getByRole("button", { name: "End" }).first().click(); // after the next refresh
    await until("one query", async () => (await rows.count()) === 1);
    check(ended.join() === "POST 7-1", ended.join());
    queries = [];
    await page.getByText("No query is running").waitFor();
    await screenshot(page, "queries");
  },

  async "a server that has blocks only opens its blocks, by label set"(tab) {
    const { page } = tab;
    tab.tolerated.push(/status of 404/);
    await features(page, { alertmanagers: false, alerts: false, blocks: true, config: false, flags: false, flames: false, notifications: false, profiles: false, queries: false, query: false, rules: false, sd: false, stores: false, targets: false, tsdb: false });
    const from = Date.UTC(2026, 0, 1);
    const blocks = Array.from({ length: 40 }, (_, i) => meta(`01${String(i).padStart(24, "0")}`, from + 2 * i * HOUR, 2, thanos(i % 2 ? "eu" : "us", i % 4 < 2 ? 0 : 300_000)));
    await page.route("**/api/v1/blocks", (r) => r.fulfill(success({ err: "the disk is away", label: "", refreshedAt: "2026-01-09T10:00:00.123456789Z", blocks })));
    await page.goto(`${tab.base}/`);
    await until("its blocks", async () => (await page.locator(".blocks").count()) === 2);
    check(new URL(page.url()).pathname.endsWith("/blocks"), page.url());
    check((await page.getByText("The bucket could not be listed").innerText()).includes("the disk is away"), "no warning of a failed list");
    for (const name of ["Query", "Profiles", "Targets", "Alerts"]) check((await page.getByRole("link", { name, exact: true }).count()) === 0, `${name} is in the navigation`);
    for (const name of ["Flags", "TSDB", "Configuration", "Stores", "Queries"]) check((await page.getByRole("link", { name, exact: true }).count()) === 0, `${name} is in the navigation`);
    await page.getByLabel("Filter by ULID").fill('cluster="eu" 5 min');
    await until("ten blocks of one set", async () => (await page.locator(".block-table tbody tr").count()) === 10);
    await screenshot(page, "blocks-bucket");
  },

  async "an exemplar leads to its profile, its span and its trace"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await exemplars(page, { trace_id: "4bf92f35", span_id: "00f067aa0ba902b7", profile_id: "p1" }, { note: "plain" });
    await page.goto(`${tab.base}/query?expr=latency&range=5m&exemplars=1`);
    await page.locator(".exemplars", { hasText: "2 exemplars." }).waitFor();
    await until("dots with a scale of their own", () => page.evaluate(() => document.querySelector(".plot").plot.dotScale()?.max === 3.5));
    await page.getByRole("button", { name: "Links to traces" }).click();
    await page.getByLabel("Trace URL").fill("javascript:alert({trace_id})");
    check(await page.getByRole("button", { name: "Save" }).isDisabled(), "an address that is no web page is taken");
    await page.getByLabel("Trace URL").fill("https://traces.example/trace/{trace_id}");
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByRole("button", { name: "List them" }).click();
    const rows = page.locator(".exemplar-list tbody tr");
    await until("two rows", async () => (await rows.count()) === 2);
    check((await rows.first().getByRole("link", { name: "Trace" }).getAttribute("href")) === "https://traces.example/trace/4bf92f35", "the link to the trace is another one");
    check((await rows.nth(1).locator("a, button").count()) === 0, "an exemplar without ids leads somewhere");
    await screenshot(page, "exemplars");
    const dot = await page.evaluate(() => {
      const { plot } = document.querySelector(".plot");
      const over = plot.chart.over.getBoundingClientRect();
      const d = plot.options.dots.find((x) => x.labels.profile_id);
      return { x: over.x + plot.chart.valToPos(d.timeMS / 1000, "x"), y: over.y + plot.dotY(d) };
    });
    await page.mouse.move(dot.x, dot.y);
    await page.locator(".tip-hint", { hasText: "Click for its profile, span, trace" }).waitFor();
    await page.mouse.click(dot.x, dot.y);
    await until("the row of the dot", async () => (await rows.count()) === 1);
    await rows.getByRole("button", { name: "Span" }).click();
    await total(page, 2e7);
    const q = requested.findLast((r) => r.method === "SelectMergeStacktraces");
    check(q.profileIdSelector[0] === "p1" && q.spanSelector[0] === "00f067aa0ba902b7", JSON.stringify(q));
    await page.goBack();
    await page.locator(".exemplars").waitFor();
    await page.reload();
    await page.getByRole("button", { name: "List them" }).click();
    await page.getByRole("link", { name: "Trace" }).waitFor();
  },

  async "a histogram is a chart, on an exponential or a linear axis"(tab) {
    const { page } = tab;
    const histogram = { count: "7", sum: "12.5", buckets: [[0, "1", "2", "1"], [0, "2", "4", "4"], [0, "4", "8", "2"]] };
    await page.route("**/api/v1/query?*", (r) => r.fulfill(success({ resultType: "vector", result: [{ metric: { __name__: "h" }, histogram: [1, histogram] }] })));
    await page.goto(`${tab.base}/query?expr=h&tab=table`);
    await page.locator(".histogram summary").click();
    const bars = page.locator(".histogram-chart rect");
    const widths = () => bars.evaluateAll((all) => all.map((b) => Math.round(Number(b.getAttribute("width")))));
    await until("bars of one width", async () => (await widths()).join() === "332,332,332");
    await page.getByRole("radio", { name: "Linear" }).click();
    await until("widths by value", async () => (await widths()).join() === "142,285,570");
    check(address(page).get("view") === "linear", page.url());
    await screenshot(page, "histogram");
  },

  async "classic histograms in a table are charts"(tab) {
    const { page } = tab;
    const rows = ["/a", "/b"].flatMap((path, k) => [["0.1", 1], ["1", 5 + k], ["+Inf", 9]].map(([le, v]) => ({ metric: { __name__: "x_bucket", path, le }, value: [1, String(v)] })));
    await page.route("**/api/v1/query?*", (r) => r.fulfill(success({ resultType: "vector", result: rows })));
    await page.goto(`${tab.base}/query?expr=x_bucket&tab=table`);
    await page.getByRole("radio", { name: "Histograms" }).click();
    await until("two charts", async () => (await page.locator(".histogram-card").count()) === 2);
    check(address(page).get("view") === "as:bars", page.url());
    await page.locator(".histogram-card").first().getByText("Buckets").click();
    check((await page.locator(".histogram-card .buckets").first().innerText()).replace(/\s+/g, " ").includes("(0.1, 1] 4"), "a bucket has another count");
    await screenshot(page, "classic-histograms");
  },

  async "the cost of each store is shown"(tab) {
    const { page } = tab;
    const store = (endpointAddr, duration, bytesProcessed) => ({ endpointAddr, duration, bytesProcessed, numResponses: 1, series: 12, chunks: 34 });
    await page.route("**/api/v1/query_range?*", (r) => {
      const q = new URL(r.request().url()).searchParams;
      const analysis = { name: "up", executionTime: "30ms", fanout: [store("10.0.0.1:10901", "2.5ms", 2048), store("10.0.0.2:10901", "1.25s", 1024)] };
      return r.fulfill(success({ resultType: "matrix", result: [{ metric: { a: "1" }, values: [[Number(q.get("end")), "1"]] }], ...(q.get("analyze") === "true" ? { analysis } : {}) }));
    });
    await page.goto(`${tab.base}/query?range=5m&expr=up`);
    await page.getByRole("button", { name: "What this query cost" }).click();
    await page.getByLabel("Include engine statistics").check();
    const rows = page.locator(".store-costs tbody tr");
    await until("two stores", async () => (await rows.count()) === 2);
    check(/^10\.0\.0\.2:10901\s+1\.3 s\s+1\.0 KiB\s+12\s+34$/.test((await rows.first().innerText()).trim()), await rows.first().innerText());
    await screenshot(page, "store-costs");
  },

  async "raw samples are downloaded from the server as CSV and Parquet"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent('sum(rate(scrape_duration_seconds{job="ferula"}[1m])) + sum(up offset 1m)')}`);
    await page.locator(".plot canvas").waitFor();
    await page.getByRole("button", { name: "More for query" }).click();
    for (const [format, begin] of [["CSV", "name,labels"], ["Parquet", "PAR1"]]) {
      const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: `Raw samples as ${format}` }).click()]);
      const q = new URL(file.url()).searchParams;
      check(q.getAll("match[]").join() === 'scrape_duration_seconds{job="ferula"},up' && Number(q.get("end")) - Number(q.get("start")) === 300, file.url());
      const text = readFileSync(await file.path()).toString("latin1");
      check(text.startsWith(begin), `${format}: ${text.slice(0, 60)}`);
    }
  },

  async "the palette finds functions of profiles"(tab) {
    const { page } = tab;
    await respond(page);
    await page.route("**/querier.v1.QuerierService/SelectFunctions", (r) => r.fulfill(json({ functions: [{ name: "runtime.mallocgc", self: "4", total: "5" }], total: "9", count: "1" })));
    await page.goto(`${tab.base}/profiles?over=lines`);
    await total(page, 1e9);
    await page.keyboard.press("ControlOrMeta+k");
    await page.getByLabel("Find metrics, labels, functions").fill("mallocgc");
    await page.locator(".palette li", { hasText: "runtime.mallocgc" }).click();
    await until("its callers and callees", () => address(page).get("function") === "runtime.mallocgc");
    await page.locator(".sandwich canvas").first().waitFor();
  },

  async "a function's menu leads to the metrics of its service, and the order of functions is in the address"(tab) {
    const { page } = tab;
    await respond(page);
    await page.goto(`${tab.base}/profiles?over=lines&service=shop&view=both`);
    await total(page, 1e9);
    await page.locator(".functions thead button", { hasText: "Total" }).click();
    await until("the order in the address", () => address(page).get("order") === "total");
    await page.locator(".legend tbody button").first().click({ modifiers: ["Shift"] });
    await until("a hidden line in the address", () => /^hide:[0-9a-z]+$/.test(address(page).get("lines") ?? ""));
    await page.reload();
    await until("both after reloading", async () => (await page.locator(".legend tr.off").count()) === 1 && (await page.locator(".functions th[aria-sort=descending]").innerText()).startsWith("Total"));
    await page.locator(".flames canvas").evaluate((e) => e.scrollIntoView({ block: "center" }));
    const box = await page.locator(".flames canvas").boundingBox();
    await page.mouse.click(box.x + 0.2 * box.width, box.y + 45, { button: "right" });
    await page.locator(".flame-menu").getByRole("button", { name: "Metrics of shop" }).click();
    await until("its metrics", () => address(page).getAll("expr")[0]?.includes('job="shop"'));
  },

  async "a change of the legend requests nothing, and the lines of the next query are shown"(tab) {
    const { page } = tab;
    const three = ["a", "b", "c"].map((k, i) => `label_replace(vector(${i + 1}), "k", "${k}", "", "")`).join(" or ");
    await page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent(three)}`);
    await until("three lines", async () => (await drawn(page))?.data.length === 4);
    let requests = 0;
    page.on("request", (r) => { if (r.url().includes("/query_range")) requests++; });
    const rows = page.locator(".legend tbody tr");
    await rows.nth(1).locator("button").click();
    await until("one line alone", async () => (await page.locator(".legend tr.off").count()) === 2);
    await page.locator(".legend thead button", { hasText: "Max" }).click();
    await until("the order in the address", () => address(page).get("view")?.includes("sort:max-"));
    check(requests === 0, `${requests} requests`);
    await runQuery(page, "vector(5)");
    await until("the other query's line", async () => (await drawn(page))?.data[1]?.includes(5));
    check((await page.locator(".legend tr.off").count()) === 0, "its line is hidden");
  },

  async "searches and \"draw all\" are in the address"(tab) {
    const { page } = tab;
    const many = (count) => Array.from({ length: count }, (_, s) => ({ __name__: "many", shard: String(s) }));
    await page.route("**/api/v1/query_range?*", (r) => { const q = new URL(r.request().url()).searchParams; return r.fulfill(success({ resultType: "matrix", result: many(250).map((metric, i) => ({ metric, values: [[Number(q.get("end")), String(i)]] })) })); });
    await page.route("**/api/v1/query?*", (r) => r.fulfill(success({ resultType: "vector", result: many(30).map((metric, i) => ({ metric, value: [1, String(i)] })) })));
    await page.goto(`${tab.base}/query?range=5m&expr=many`);
    await page.locator("[data-omitted]").getByRole("button").click();
    await until("all in the address", () => address(page).get("view") === "all");
    await page.getByLabel("Filter the series").click();
    await page.keyboard.type('shard="24');
    await page.keyboard.press("Enter");
    await until("the search in the address", () => address(page).get("view")?.includes("find:"));
    await page.reload();
    await until("eleven of all after reloading", async () => (await page.locator(".legend tbody tr").count()) === 11 && (await page.locator("[data-omitted]").count()) === 0);
    await page.goto(`${tab.base}/query?tab=table&expr=many&view=find%3A29`);
    await until("one row", async () => (await page.locator("table.result tbody tr").count()) === 1);
    await page.goto(`${tab.base}/flags?find=web.listen`);
    await until("one flag", async () => (await page.locator("table.flags tr").count()) === 1);
  },
};
