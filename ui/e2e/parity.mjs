// Checks of what users of Prometheus', Thanos' and Pyroscope's pages look for.
import { check, drawn, PLAIN_HOST, runQuery, screenshot, until } from "./browser.mjs";
import { serverBefore } from "./many.mjs";
import { flame, respond, total } from "./profiles.mjs";

const success = (data) => ({ status: 200, contentType: "application/json", body: JSON.stringify({ status: "success", data }) });

const features = (page, ferula) => page.route("**/api/v1/status/features", (r) => r.fulfill(success({ ferula })));

const address = (page) => new URL(page.url()).searchParams;

const GROUPS = {
  groups: [{
    name: "shop", file: "rules.yml", interval: 30, evaluationTime: 0.002, lastEvaluation: new Date().toISOString(), rules: [
      { type: "alerting", name: "HighLatency", query: "latency > 1", state: "firing", health: "ok", duration: 60, keepFiringFor: 0, labels: { severity: "page" }, annotations: { summary: "slow" }, lastError: "", evaluationTime: 0.001, lastEvaluation: new Date().toISOString(),
        alerts: [{ labels: { alertname: "HighLatency", pod: "a" }, annotations: { summary: "slow" }, state: "firing", activeAt: new Date(Date.now() - 600_000).toISOString(), value: "1.5e+00" }] },
      { type: "recording", name: "job:x:sum", query: "sum by (job) (x)", health: "err", lastError: "many-to-many matching", evaluationTime: 0, lastEvaluation: "0001-01-01T00:00:00Z" },
    ],
  }],
};

export const checks = {
  async "rules and alerts are listed, filtered, and lead to their queries"(tab) {
    const { page } = tab;
    await features(page, { alerts: true, rules: true, targets: true });
    await page.route("**/api/v1/rules*", (r) => r.fulfill(success(GROUPS)));
    await page.goto(`${tab.base}/alerts`);
    await page.locator(".rule", { hasText: "HighLatency" }).waitFor();
    check((await page.locator(".rule").count()) === 1, "a recording rule is among the alerts");
    await screenshot(page, "alerts");
    await page.getByRole("link", { name: "Rules", exact: true }).click();
    await page.locator(".rule", { hasText: "many-to-many matching" }).waitFor();
    await page.getByRole("radio", { name: /Failing/ }).click();
    await until("the filter in the address", () => address(page).get("state") === "bad");
    check((await page.locator(".rule").count()) === 1, "the filter does not filter");
    await page.reload();
    await until("one rule after reloading", async () => (await page.locator(".rule").count()) === 1);
    await page.locator(".rule-query").click();
    await until("the rule's query", () => address(page).get("expr") === "sum by (job) (x)");
  },

  async "the navigation shows what the server has"(tab) {
    const { page } = tab;
    await features(page, { alerts: false, config: false, profiles: false, stores: true, targets: true, tsdb: false });
    await page.goto(`${tab.base}/status`);
    await page.getByRole("link", { name: "Stores" }).waitFor();
    for (const name of ["Profiles", "Alerts", "TSDB", "Configuration"]) check((await page.getByRole("link", { name, exact: true }).count()) === 0, `${name} is shown`);
  },

  async "service discovery shows rule by rule why a target was dropped"(tab) {
    const { page } = tab;
    const discovered = { __address__: "10.0.0.1:80", __meta_env: "test" };
    await page.route("**/api/v1/targets", (r) => r.fulfill(success({ activeTargets: [], droppedTargets: [{ discoveredLabels: discovered, scrapePool: "shop" }], droppedTargetCounts: { shop: 1 } })));
    const sent = page.waitForRequest((r) => r.url().includes("relabel_steps"));
    await page.route("**/api/v1/targets/relabel_steps?*", (r) => r.fulfill(success({ steps: [
      { rule: { source_labels: ["__meta_env"], regex: "(.*)", target_label: "env", replacement: "$1", action: "replace" }, output: { ...discovered, env: "test" }, keep: true },
      { rule: { source_labels: ["env"], regex: "prod", action: "keep" }, output: {}, keep: false }, { rule: { action: "labeldrop", regex: "x" }, output: {}, keep: false },
    ] })));
    await page.goto(`${tab.base}/service-discovery`);
    await page.getByRole("button", { name: "Rule by rule" }).click();
    const q = new URL((await sent).url()).searchParams;
    check(q.get("scrapePool") === "shop" && JSON.stringify(JSON.parse(q.get("labels"))) === JSON.stringify(discovered), String(q));
    await page.locator(".relabel ins", { hasText: "test" }).waitFor();
    await page.locator(".relabel li", { hasText: "regex: prod" }).locator(".badge", { hasText: "dropped" }).waitFor();
    check((await page.locator(".relabel > ol > li").count()) === 2, "rules after the one that dropped the target are shown");
    await screenshot(page, "relabel");
  },

  async "a notification of the server is shown until it ends, with one request"(tab) {
    const { page } = tab;
    let requests = 0;
    await features(page, { notifications: true, targets: true });
    const event = (active) => `data: ${JSON.stringify({ text: "Configuration reload has failed.", date: new Date().toISOString(), active })}\n\n`;
    await page.route("**/api/v1/notifications/live", (r) => { requests++; return r.fulfill({ status: 200, contentType: "text/event-stream", body: event(true) + (requests > 1 ? event(false) : "") }); });
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    const banner = page.locator(".banner", { hasText: "Configuration reload has failed." });
    await banner.waitFor();
    await page.waitForTimeout(5000);
    check(requests === 1, `${requests} requests in five seconds`);
    await page.reload();
    await until("the second request", () => requests === 2);
    await banner.waitFor({ state: "detached" });
  },

  async "a query is explained part by part"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?tab=explain&expr=${encodeURIComponent('sum by (job, instance) (up) / on (job) group_left () count by (job) (up)')}`);
    await until("figures of every part", async () => (await page.locator(".tree .hint b").count()) >= 5);
    await page.locator(".sides", { hasText: "1 matching group" }).waitFor();
    await screenshot(page, "explain");
    await page.locator(".part-text", { hasText: /^up$/ }).first().click();
    await page.locator("table.result").waitFor();
    check(address(page).get("expr") === "up", "the part was not run");
  },

  async "a query is formatted, duplicated and copied"(tab) {
    const { page } = tab;
    await tab.context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent("sum(up)by(job)")}`);
    await page.locator(".plot canvas").waitFor();
    const more = page.getByRole("button", { name: "More for query" });
    await more.click();
    await page.getByRole("button", { name: "Format the query" }).click();
    await until("the formatted query", () => address(page).get("expr") === "sum by (job) (up)");
    await more.click();
    await page.getByRole("button", { name: "Copy as curl" }).click();
    await page.locator(".menu .hint", { hasText: "Copied" }).waitFor();
    const text = await page.evaluate(() => navigator.clipboard.readText());
    check(text.includes("curl") && text.includes("--data-urlencode 'query=sum by (job) (up)'") && text.includes("/api/v1/query_range"), text);
    await page.getByRole("button", { name: "Copy as ferula read" }).click();
    await until("the command", async () => (await page.evaluate(() => navigator.clipboard.readText())).includes("--match up"));
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download CSV" }).click()]);
    check(file.suggestedFilename() === "sum_by_job_up.csv", file.suggestedFilename());
    await page.getByRole("button", { name: "Duplicate" }).click();
    await until("two graphs", async () => (await page.locator(".plot canvas").count()) === 2);
  },

  async "over http from another host, where browsers have no clipboard, copying works"(tab) {
    const { page, context } = tab;
    const server = await serverBefore(tab.base, () => false);
    const { port } = new URL(server.url);
    tab.own.add(`${PLAIN_HOST}:${port}`);
    try {
      await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: tab.base });
      const reader = await context.newPage();
      await reader.goto(`${tab.base}/flags`);
      const copied = async () => { await reader.bringToFront(); const text = await reader.evaluate(() => navigator.clipboard.readText()); await page.bringToFront(); return text; };
      await page.bringToFront();
      await page.goto(`http://${PLAIN_HOST}:${port}/query?range=5m&expr=up`);
      await page.locator(".plot canvas").waitFor();
      check(await page.evaluate(() => !window.isSecureContext && navigator.clipboard === undefined), "the page has a clipboard");
      await page.getByRole("button", { name: "More for query" }).click();
      await page.getByRole("button", { name: "Copy as curl" }).click();
      const hint = page.locator(".menu .hint", { hasText: /./ });
      await hint.waitFor();
      check((await hint.textContent()).startsWith("Copied"), await hint.textContent());
      const text = await copied();
      check(text.includes("curl") && text.includes(`${PLAIN_HOST}:${port}/api/v1/query_range`), text);
      await page.goto(`http://${PLAIN_HOST}:${port}/query?tab=table&expr=up`);
      await page.getByLabel("Layout").getByText("Text").click();
      await page.getByRole("button", { name: "Copy selector" }).first().click();
      await page.getByRole("button", { name: "Copied" }).waitFor();
      check((await copied()).startsWith("up{"), await copied());
      check((await page.locator(".copy-box").count()) === 0, "the box of the text is left behind");
    } finally {
      await page.goto("about:blank");
      server.close();
    }
  },

  async "scales, comparison and hidden lines are in the address"(tab) {
    const { page } = tab;
    const expr = 'label_replace(vector(5), "k", "a", "", "") or label_replace(vector(50), "k", "b", "", "")';
    await page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent(expr)}`);
    await until("two lines", async () => (await drawn(page))?.data.length === 3);
    await page.getByLabel("Scale of the values").selectOption("zero");
    await until("zero on the axis", () => page.evaluate(() => document.querySelector(".plot").plot.chart.scales.y.min === 0));
    await page.getByLabel("Scale of the values").selectOption("log");
    await until("a logarithm", () => page.evaluate(() => document.querySelector(".plot").plot.chart.scales.y.distr === 3));
    await page.getByLabel("Compare with").selectOption("3600000");
    await until("two more lines", async () => (await drawn(page)).data.length === 5);
    await screenshot(page, "compare");
    await page.locator(".legend tbody button").first().click({ modifiers: ["Shift"] });
    await until("a hidden line", () => address(page).get("view")?.includes("hide:"));
    await page.reload();
    await until("it is hidden after reloading", async () => (await page.locator(".legend tr.off").count()) === 1);
  },

  async "raw samples are drawn without their range, and Grafana's variables run"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent("scrape_duration_seconds[5m]")}`);
    await page.locator(".note", { hasText: "without its range" }).waitFor();
    await page.locator(".plot canvas").waitFor();
    check((await page.locator(".axis-title").innerText()) === "seconds", "the axis has no unit");
    await runQuery(page, "rate(process_cpu_seconds_total[$__rate_interval])");
    await until("a query with a duration", () => /^rate\(process_cpu_seconds_total\[\d+[ms]\]\)$/.test(tab.ranges.at(-1)?.params.query ?? ""));
  },

  async "histograms are a heat map"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?range=5m&view=heat&expr=${encodeURIComponent('sum by (le) (increase(ferula_http_request_duration_seconds_bucket[1m]))')}`);
    await until("rows", async () => Number(await page.locator(".heatmap").getAttribute("data-rows")) > 1, 20_000);
    await screenshot(page, "heatmap");
    await runQuery(page, "up");
    await page.locator(".empty", { hasText: "No buckets" }).waitFor();
  },

  async "the cost of a response is reported"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?range=5m&expr=up`);
    await page.getByRole("button", { name: "What this query cost" }).click();
    await page.getByLabel("Include engine statistics").check();
    await until("counted samples", async () => (await page.locator(".cost-details").innerText()).includes("Samples read"));
    check((await page.locator(".cost-details").innerText()).includes("Engine"), "no engine");
    await screenshot(page, "cost");
  },

  async "labels of a metric build a selector"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    await page.getByRole("button", { name: "Metrics" }).click();
    await page.locator("dialog input").fill("^up");
    await page.locator("dialog input").fill("up");
    await page.locator(".metrics li", { has: page.locator("code", { hasText: /^up$/ }) }).getByRole("button", { name: "Labels" }).click();
    await page.locator(".label-rows .chip", { hasText: "ferula" }).first().click();
    await until("the selector", async () => (await page.locator(".label-selector code").innerText()) === 'up{job="ferula"}');
    await screenshot(page, "labels");
    await page.locator(".label-selector").getByRole("button", { name: "Run" }).click();
    await until("the query", () => address(page).get("expr") === 'up{job="ferula"}');
  },

  async "a querier's parameters are sent, kept and opened from Thanos' links"(tab) {
    const { page } = tab;
    await features(page, { stores: true, targets: true });
    await page.route("**/api/v1/stores", (r) => r.fulfill(success({ sidecar: [{ name: "10.0.0.1:10901", lastError: null, labelSets: [], minTime: 0, maxTime: 1, lastCheck: new Date().toISOString() }] })));
    await page.goto(`${tab.base}/graph?g0.expr=up&g0.tab=0&g0.deduplicate=0&g0.max_source_resolution=5m`);
    await until("the parameters", () => { const p = tab.ranges.at(-1)?.params; return p?.dedup === "false" && p.max_source_resolution === "5m"; });
    await page.getByRole("button", { name: "Stores and resolution" }).click();
    await page.locator(".store-list").getByText("10.0.0.1:10901").click();
    await until("the store", () => tab.ranges.at(-1)?.params["storeMatch[]"] === '{__address__="10.0.0.1:10901"}');
    const headers = page.waitForRequest((r) => r.url().includes("query_range") && r.headers()["thanos-tenant"] === "team-a");
    await page.getByLabel("Tenant").fill("team-a");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    await headers;
    await screenshot(page, "thanos-controls");
    check(address(page).get("tenant") === "team-a" && address(page).get("dedup") === "0", page.url());
  },

  async "the palette leads to metrics and pages"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    await page.locator(".plot canvas").waitFor();
    await page.keyboard.press("ControlOrMeta+k");
    await page.getByLabel("Find metrics, labels").fill("go_gorout");
    await page.locator(".palette li", { hasText: "go_goroutines" }).waitFor();
    await screenshot(page, "palette");
    await page.keyboard.press("Enter");
    await until("the metric", () => address(page).get("expr") === "go_goroutines");
  },

  async "a running query can be ended"(tab) {
    const { page } = tab;
    await page.route("**/api/v1/query_range?*", async (r) => { await new Promise((done) => setTimeout(done, 20_000)); await r.abort().catch(() => undefined); });
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    await page.locator("#cancel").click();
    await page.locator(".notice", { hasText: "cancelled" }).waitFor();
  },

  async "two ranges are compared in one flame graph"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.goto(`${tab.base}/profiles?range=5m`);
    await total(page, 1e9);
    await page.locator("#compare").click();
    await until("the difference", async () => (await flame(page))?.total === 2);
    await page.locator(".flames canvas").evaluate((e) => e.scrollIntoView({ block: "center" }));
    const q = requested.findLast((r) => r.method === "Diff");
    check(q.left.end === q.right.start && Number(q.right.end) - Number(q.right.start) === 300_000, JSON.stringify(q));
    const box = await page.locator(".flames canvas").boundingBox();
    await page.mouse.move(box.x + 0.2 * box.width, box.y + 25);
    await until("both figures", async () => /before[\s\S]*then[\s\S]*−71 %/.test(await page.locator(".flame-tip").innerText()));
    await screenshot(page, "flame-diff");
    await page.getByRole("radio", { name: "Both" }).click();
    await page.locator(".functions tbody tr", { hasText: "main.idle" }).waitFor();
    await page.reload();
    await until("the difference after reloading", async () => (await flame(page))?.total === 2);
    await page.locator("#end-compare").click();
    await total(page, 1e9);
  },

  async "callers and callees of a function are a sandwich, and the search is in the address"(tab) {
    const { page } = tab;
    await respond(page);
    await page.goto(`${tab.base}/profiles?view=both`);
    await total(page, 1e9);
    await page.getByRole("button", { name: "Callers and callees of runtime.mallocgc" }).click();
    await until("the sandwich", async () => (await page.locator(".sandwich canvas").count()) === 2);
    check(address(page).get("function") === "runtime.mallocgc", page.url());
    await screenshot(page, "sandwich");
    await page.getByLabel(/Find functions/).fill("conn");
    await until("the search in the address", () => address(page).get("find") === "conn");
  },

  async "a spike leads to its reason"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.route("**/api/v1/query_range?*", (r) => {
      const q = new URL(r.request().url()).searchParams;
      const [start, end, step] = ["start", "end", "step"].map((k) => Number(q.get(k)));
      const n = Math.floor((end - start) / step) + 1;
      return r.fulfill(success({ resultType: "matrix", result: [{ metric: { job: "shop", le: "1" }, values: Array.from({ length: n }, (_, i) => [start + i * step, String(i > n * 0.7 && i < n * 0.85 ? 5 : 1)]) }] }));
    });
    await page.goto(`${tab.base}/query?expr=latency_seconds&range=1h`);
    await page.locator(".plot canvas").waitFor();
    await page.locator(".brush-hint").waitFor();
    const over = await page.locator(".u-over").boundingBox();
    const y = over.y + over.height / 2;
    await page.keyboard.down("Shift");
    await page.mouse.move(over.x + over.width * 0.7, y);
    await page.mouse.down();
    await page.mouse.move(over.x + over.width * 0.85, y, { steps: 5 });
    await page.mouse.up();
    await page.keyboard.up("Shift");
    check(address(page).get("range") === "1h" || !address(page).has("range"), "it zoomed");
    await page.locator(".plot").focus();
    await screenshot(page, "spike");
    await page.keyboard.press("d");
    await until("the difference", async () => (await flame(page))?.total === 2);
    const q = requested.findLast((r) => r.method === "Diff");
    check(q.right.labelSelector === '{service_name="shop"}', q.right.labelSelector);
    check(Math.abs(Number(q.right.end) - Number(q.right.start) - 540_000) < 30_000 && q.left.end === q.right.start, JSON.stringify(q));
    await screenshot(page, "spike-to-reason");
    await page.getByRole("button", { name: "Metrics of shop" }).click();
    await until("its metrics", () => address(page).getAll("expr")[0]?.includes('job="shop"'));
  },
};
