// Checks of the profiles page. What the server measured of itself is looked at as it is; what must be exact has responses
// made here.
import { check, drawn, screenshot, until } from "./browser.mjs";

const TYPE = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const NAMES = ["total", "main.run", "github.com/a/b/tsdb.(*Head).Append", "runtime.mallocgc", "net/http.(*conn).serve", "main.idle"];
const WHOLE = {
  names: NAMES, total: "1000000000", maxSelf: "400000000",
  levels: [[0, 1e9, 0, 0], [0, 7e8, 1e8, 1, 0, 3e8, 3e8, 4], [1e8, 4e8, 2e8, 2, 0, 2e8, 2e8, 3], [2e8, 2e8, 2e8, 3]]
    .map((values) => ({ values: values.map(String) })),
};
const ONE = { names: ["total", "main.only"], total: "20000000", maxSelf: "20000000", levels: [{ values: ["0", "20000000", "0", "0"] }, { values: ["0", "20000000", "20000000", "1"] }] };

/** main.run went from 70 to 20 of 100, main.idle came. */
const DIFF = {
  names: ["total", "main.run", "main.idle"], leftTicks: "100", rightTicks: "100",
  levels: [[0, 100, 30, 0, 100, 0, 0], [0, 70, 70, 0, 20, 20, 1, 0, 0, 0, 0, 80, 80, 2]].map((values) => ({ values: values.map(String) })),
};

const json = (message) => ({ status: 200, contentType: "application/json", body: JSON.stringify(message) });

/** Two cells in the third last step, of values from 0 and from 190; where single ones are requested, three profiles or spans. */
function heat(q) {
  const step = q.step * 1000;
  const at = Math.floor(Number(q.end) / step) * step - 2 * step;
  if (!q.exemplarType) return { series: [{ slots: [{ timestamp: String(at), yMin: [0, 190e6], counts: [3, 1] }] }] };
  const span = q.queryType === "HEATMAP_QUERY_TYPE_SPAN";
  const exemplar = (n, value) => ({ timestamp: String(Number(q.end) - 1000 * n), profileId: `profile-${n}`, value: String(value), labels: [{ name: "pod", value: `pod-${n}` }], ...(span ? { spanId: `00000000000000f${n}`, traceId: "1".repeat(32) } : {}) });
  return { series: [{ slots: [{ timestamp: q.end, yMin: [0], counts: [3], exemplars: [exemplar(1, 4e6), exemplar(2, 5e6), exemplar(3, 190e6)] }] }] };
}

/** Responds for the whole API: two lines, a dot in each tenth step, and the flame graph of the range or of one profile. */
async function respond(page) {
  const requested = [];
  const service = (method) => `**/querier.v1.QuerierService/${method}`;
  await page.route(service("ProfileTypes"), (r) => r.fulfill(json({ profileTypes: [{ ID: "memory:inuse_space:bytes:space:bytes", name: "memory", sampleType: "inuse_space", sampleUnit: "bytes" }, { ID: TYPE, name: "process_cpu", sampleType: "cpu", sampleUnit: "nanoseconds" }] })));
  await page.route(service("LabelValues"), (r) => r.fulfill(json({ names: ["ferula", "shop"] })));
  await page.route(service("LabelNames"), (r) => r.fulfill(json({ names: ["__period_type__", "pod", "service_name"] })));
  await page.route(service("SelectSeries"), (r) => {
    const q = r.request().postDataJSON();
    requested.push({ method: "SelectSeries", ...q });
    const [start, end, step] = [Number(q.start), Number(q.end), q.step * 1000];
    const points = Array.from({ length: Math.floor((end - start) / step) + 1 }, (_, i) => {
      const timestamp = String(start + i * step);
      const value = 4e8 + 3e8 * Math.sin(i / 9);
      const exemplars = i % 10 === 5 ? [{ timestamp: String(start + i * step - 3000), profileId: `profile-${i}`, value: String(Math.round(value)), labels: [{ name: "pod", value: "a" }] }] : [];
      return { timestamp, value, exemplars };
    });
    return r.fulfill(json({ series: [{ labels: [{ name: "service_name", value: "ferula" }], points }, { labels: [{ name: "service_name", value: "shop" }], points: points.map((p) => ({ timestamp: p.timestamp, value: p.value / 3 })) }] }));
  });
  await page.route(service("SelectMergeStacktraces"), (r) => {
    const q = r.request().postDataJSON();
    requested.push({ method: "SelectMergeStacktraces", ...q });
    return r.fulfill(json({ flamegraph: q.profileIdSelector ? ONE : WHOLE }));
  });
  await page.route(service("SelectHeatmap"), (r) => {
    const q = r.request().postDataJSON();
    requested.push({ method: "SelectHeatmap", ...q });
    return r.fulfill(json(heat(q)));
  });
  await page.route(service("SelectFunctions"), (r) => {
    requested.push({ method: "SelectFunctions", ...r.request().postDataJSON() });
    return r.fulfill(json({ functions: [], total: "0" }));
  });
  await page.route(service("Diff"), (r) => {
    requested.push({ method: "Diff", ...r.request().postDataJSON() });
    return r.fulfill(json({ flamegraph: DIFF }));
  });
  return requested;
}

const flame = (page) => page.evaluate(() => {
  const canvas = document.querySelector(".flames canvas");
  return canvas?.flame ? { total: canvas.flame.total, names: canvas.flame.names, levels: canvas.flame.levels.length } : null;
});

const total = (page, value) => until(`a flame graph of ${value}`, async () => (await flame(page))?.total === value);

/** Where the first dot is on the screen. */
const dotPlace = (page) => page.evaluate(() => {
  const { plot } = document.querySelector(".plot");
  const over = plot.chart.over.getBoundingClientRect();
  const d = plot.options.dots[3];
  return { x: over.x + plot.chart.valToPos(d.timeMS / 1000, "x"), y: over.y + plot.chart.valToPos(d.y, "y"), id: d.id };
});

export { flame, json, respond, total, TYPE, WHOLE };

export const checks = {
  async "the server's own profiles show, and one of them alone"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/profiles?range=5m`);
    await until("a flame graph of the server", async () => {
      await page.locator("#refresh").click();
      return (await flame(page))?.total > 0;
    }, 60_000);
    const whole = (await flame(page)).total;
    await screenshot(page, "profiles-own");
    const id = await until("a dot", () => page.evaluate(() => document.querySelector(".plot")?.plot?.options.dots?.[0]?.id));
    const at = await page.evaluate(() => document.querySelector(".plot").plot.options.dots[0].timeMS);
    await page.goto(`${tab.base}/profiles?range=5m&id=${id}&at=${at}`);
    await until("the flame graph of one profile", async () => { const f = await flame(page); return f && f.total > 0 && f.total <= whole; });
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "pprof" }).click()]);
    check(file.suggestedFilename() === "process_cpu-cpu.pb.gz", file.suggestedFilename());
  },

  async "a dot of the profile series leads to its own flame graph, and back"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.goto(`${tab.base}/profiles?over=lines`);
    await until("two lines", async () => (await drawn(page))?.data.length === 3);
    await total(page, 1e9);
    check(!requested.some((q) => q.exemplarType), "profiles were requested that are not shown");
    await page.getByRole("checkbox", { name: "Profiles" }).check();
    await until("the dots", () => page.evaluate(() => document.querySelector(".plot")?.plot?.options.dots?.length > 0));
    check(requested.some((q) => q.method === "SelectSeries" && q.profileTypeID === TYPE && q.exemplarType === "EXEMPLAR_TYPE_INDIVIDUAL"), "CPU time is not what is shown first");
    await screenshot(page, "profiles-light");
    const dot = await dotPlace(page);
    await page.mouse.move(dot.x, dot.y);
    await page.locator(".tip-hint").waitFor();
    await screenshot(page, "profiles-dot");
    await page.mouse.click(dot.x, dot.y);
    await total(page, 2e7);
    check(requested[requested.length - 1].profileIdSelector[0] === dot.id, "another profile was requested");
    check(new URL(page.url()).searchParams.get("id") === dot.id, "the profile is not in the address");
    await page.locator("#whole-range").click();
    await total(page, 1e9);
  },

  async "a flame graph can be searched, focused and read as a table"(tab) {
    const { page } = tab;
    await respond(page);
    await page.goto(`${tab.base}/profiles?over=lines`);
    await total(page, 1e9);
    await page.getByLabel(/Find functions/).fill("mallocgc");
    await until("the share of what matches", async () => (await page.locator(".matched").innerText()).includes("40.0 %"));
    await screenshot(page, "profiles-search");
    await page.locator(".flames canvas").evaluate((e) => e.scrollIntoView({ block: "center" }));
    const box = await page.locator(".flames canvas").boundingBox();
    await page.mouse.move(box.x + 0.2 * box.width, box.y + 45);
    await until("a tooltip", async () => (await page.locator(".flame-tip").innerText()).includes("tsdb.(*Head).Append"));
    await page.mouse.click(box.x + 0.2 * box.width, box.y + 45);
    await page.locator("nav.crumbs", { hasText: "tsdb.(*Head).Append" }).waitFor();
    await page.mouse.move(box.x + 0.5 * box.width, box.y + 65);
    await until("the focus to fill the width", async () => (await page.locator(".flame-tip").innerText()).includes("mallocgc"));
    await screenshot(page, "profiles-focus");
    await page.getByRole("navigation", { name: "Focused function" }).getByRole("button", { name: "all" }).click();
    await page.getByRole("radio", { name: "Functions" }).click();
    await until("the row of the function", async () => (await page.locator(".functions tbody tr").first().innerText()).replace(/[\s⇅]+/g, " ").includes("runtime.mallocgc 400 ms 40.0 %"));
    await screenshot(page, "profiles-table");
  },

  async "a metric's exemplar leads to the profile of its time"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.route("**/api/v1/query_range?*", (r) => {
      const q = new URL(r.request().url()).searchParams;
      const [start, end] = [Number(q.get("start")), Number(q.get("end"))];
      return r.fulfill(json({ status: "success", data: { resultType: "matrix", result: [{ metric: { handler: "/a" }, values: [[start, "1"], [end, "3"]] }] } }));
    });
    let at = 0;
    await page.route("**/api/v1/query_exemplars?*", (r) => {
      at = Number(new URL(r.request().url()).searchParams.get("end")) - 60;
      return r.fulfill(json({ status: "success", data: [{ seriesLabels: { __name__: "h_bucket", le: "5", handler: "/a" }, exemplars: [{ labels: { trace_id: "t1", profile_id: "p1" }, value: "2.5", timestamp: at }] }] }));
    });
    await page.goto(`${tab.base}/query?expr=latency&range=5m`);
    await page.locator(".plot canvas").waitFor();
    await page.getByLabel("Exemplars").check();
    await page.locator(".note", { hasText: "1 exemplar." }).waitFor();
    const dot = await until("the dot", () => page.evaluate(() => {
      const { plot } = document.querySelector(".plot");
      const d = plot.options.dots?.[0];
      const over = plot.chart.over.getBoundingClientRect();
      return d && { x: over.x + plot.chart.valToPos(d.timeMS / 1000, "x"), y: over.y + plot.chart.valToPos(d.value, "y") };
    }));
    await page.mouse.move(dot.x, dot.y);
    await page.locator(".tip", { hasText: "Click for the profile of that time" }).waitFor();
    await screenshot(page, "query-exemplar");
    await page.mouse.click(dot.x, dot.y);
    await total(page, 2e7);
    const q = requested[requested.length - 1];
    check(q.profileIdSelector[0] === "p1" && Number(q.start) <= at * 1000 && Number(q.end) >= at * 1000, JSON.stringify(q));
  },

  async "a server without profiles is named as such, and errors have titles"(tab) {
    const { page } = tab;
    tab.tolerated.push(/status of 4\d\d/);
    await page.route("**/querier.v1.QuerierService/*", (r) => r.fulfill({ status: 404, contentType: "text/plain", body: "404 page not found\n" }));
    await page.goto(`${tab.base}/profiles`);
    await page.locator(".empty", { hasText: "keeps no profiles" }).waitFor();
    await page.unroute("**/querier.v1.QuerierService/*");
    await respond(page);
    await page.route("**/querier.v1.QuerierService/SelectSeries", (r) => r.fulfill({ status: 400, contentType: "application/json", body: JSON.stringify({ code: "invalid_argument", message: "label selector: 1:2: unexpected end" }) }));
    await page.goto(`${tab.base}/profiles`);
    await page.locator(".notice.error", { hasText: "unexpected end" }).waitFor();
  },

  async "the profiles page fits a phone, and a dark room"(tab) {
    const { page } = tab;
    await respond(page);
    await page.setViewportSize({ width: 390, height: 844 });
    await page.goto(`${tab.base}/profiles`);
    await total(page, 1e9);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(wide <= 0, `it is ${wide} px too wide`);
    await screenshot(page, "phone-profiles");
    await page.setViewportSize({ width: 1440, height: 900 });
    await page.emulateMedia({ colorScheme: "dark" });
    await until("dark", () => page.evaluate(() => document.documentElement.dataset.theme === "dark"));
    await screenshot(page, "profiles-dark");
  },
};
