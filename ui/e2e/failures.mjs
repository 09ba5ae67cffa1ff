// Checks of what is shown when something is wrong, or huge, or rare. The rare responses are made here.
import { check, drawn, runQuery, screenshot, until } from "./browser.mjs";

const success = (data) => ({ status: 200, contentType: "application/json", body: JSON.stringify({ status: "success", data }) });

/** Responds to query_range with `count` lines over the requested steps. */
function manySeries(count) {
  return (route) => {
    const q = new URL(route.request().url()).searchParams;
    const [start, end, step] = ["start", "end", "step"].map((k) => Number(q.get(k)));
    const times = Array.from({ length: Math.floor((end - start) / step) + 1 }, (_, i) => start + i * step);
    const result = Array.from({ length: count }, (_, s) => ({
      metric: { __name__: "many", shard: String(s) },
      values: times.map((t, i) => [t, String(s + Math.sin(i / 20) * 40)]),
    }));
    return route.fulfill(success({ resultType: "matrix", result }));
  };
}

/** Two frames later every change has been painted. */
const painted = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))));

export const checks = {
  async "an error is shown in place, with its position"(tab) {
    tab.tolerated.push(/status of 400/);
    await tab.page.goto(`${tab.base}/query?expr=up`);
    await tab.page.locator(".plot canvas").waitFor();
    await runQuery(tab.page, "up foo");
    await tab.page.locator(".notice.error", { hasText: "unexpected identifier" }).waitFor();
    await until("the underline", async () => (await tab.page.locator(".cm-server-error").innerText()) === "foo");
    await screenshot(tab.page, "error");
    await runQuery(tab.page, "up");
    await tab.page.locator(".plot canvas").waitFor();
    check((await tab.page.locator(".notice.error").count()) === 0, "the error stayed");
  },

  async "infos are shown above the result"(tab) {
    await tab.page.goto(`${tab.base}/query?range=5m&expr=${encodeURIComponent("rate(scrape_duration_seconds[1m])")}`);
    await tab.page.locator(".notice.info", { hasText: "might not be a counter" }).waitFor();
    await tab.page.locator(".plot canvas").waitFor();
  },

  async "fifteen hundred series stay usable, and the hidden ones are counted"(tab) {
    await tab.page.route("**/api/v1/query_range?*", manySeries(1500));
    await tab.page.goto(`${tab.base}/query?expr=many`);
    const note = tab.page.locator("[data-omitted]");
    await note.waitFor();
    check((await note.getAttribute("data-omitted")) === "1300", "the note counts otherwise");
    const lines = (n) => tab.page.evaluate((want) => document.querySelector(".plot").plot.crowd?.lines === want, n);
    await until("200 lines", () => lines(200));
    await screenshot(tab.page, "many-series");
    await note.getByRole("button").click();
    await until("a picture of all lines", () => lines(1500));
    await painted(tab.page);
    const over = await tab.page.locator(".u-over").boundingBox();
    const began = Date.now();
    for (let i = 0; i < 20; i++) await tab.page.mouse.move(over.x + 200 + i * 20, over.y + 100 + i * 5);
    await tab.page.locator(".tip").waitFor();
    await painted(tab.page);
    check(Date.now() - began < 4000, `twenty moves over 1,500 lines took ${Date.now() - began} ms`);
  },

  async "a query too long for an address goes in a body"(tab) {
    const methods = [];
    tab.page.on("request", (r) => { if (r.url().includes("/api/v1/query_range")) methods.push(r.method()); });
    await tab.page.goto(`${tab.base}/query?expr=up&range=5m`);
    await tab.page.locator(".plot canvas").waitFor();
    await runQuery(tab.page, `vector(4) # ${"x".repeat(5000)}`);
    await until("the result", async () => (await drawn(tab.page))?.data[1]?.includes(4));
    check(methods.includes("POST"), `methods: ${methods}`);
  },

  async "native histograms have figures, a sketch and buckets"(tab) {
    const histogram = { count: "6", sum: "12.5", buckets: [[0, "0.5", "1", "2"], [0, "1", "2", "4"]] };
    await tab.page.route("**/api/v1/query?*", (r) => r.fulfill(success({ resultType: "vector", result: [{ metric: { __name__: "h", job: "x" }, histogram: [1, histogram] }] })));
    await tab.page.goto(`${tab.base}/query?expr=h&tab=table`);
    await tab.page.locator(".histogram summary").click();
    await tab.page.locator(".histogram .buckets").waitFor();
    const text = (await tab.page.locator(".histogram").innerText()).replace(/\s+/g, " ");
    check(text.includes("count 6") && text.includes("(1, 2]") && text.includes("sum 12.5"), text);
    check((await tab.page.locator(".sketch rect").count()) === 2, "the sketch has not two bars");
  },

  async "a slow query is cancelled by the next one"(tab) {
    await tab.page.route("**/api/v1/query_range?*", async (route) => {
      if (route.request().url().includes("slow")) await new Promise((r) => setTimeout(r, 3000));
      await route.continue().catch(() => undefined);
    });
    const cancelled = [];
    tab.page.on("requestfailed", (r) => cancelled.push(r.url()));
    await tab.page.goto(`${tab.base}/query?range=5m&expr=slow`);
    await tab.page.locator(".cm-content").waitFor();
    await runQuery(tab.page, "vector(5)");
    await until("the second result", async () => (await drawn(tab.page))?.data[1]?.includes(5));
    check(cancelled.some((u) => u.includes("slow")), "the first request was not cancelled");
  },

  async "a proxy that times out on one path gets one request, and a button repeats it"(tab) {
    tab.tolerated.push(/status of 504/);
    let requests = 0;
    await tab.page.route("**/api/v1/query_range?*", (r) => { requests++; return r.fulfill({ status: 504, contentType: "text/html", body: "<html>gateway time-out</html>" }); });
    await tab.page.goto(`${tab.base}/query?expr=up&range=5m`);
    const notice = tab.page.locator(".notice.error", { hasText: "504" });
    await notice.waitFor();
    await new Promise((r) => setTimeout(r, 10_000));
    check(requests === 1, `${requests} requests in ten seconds`);
    check((await tab.page.locator(".banner").count()) === 0, "the banner shows the server as away");
    await tab.page.unroute("**/api/v1/query_range?*");
    await notice.getByRole("button", { name: "Retry" }).click();
    await tab.page.locator(".plot canvas").waitFor();
  },

  async "a failing path is refreshed at most six times a minute"(tab) {
    tab.tolerated.push(/status of 50/);
    let requests = 0;
    await tab.page.route("**/api/v1/query_range?*", (r) => {
      requests++;
      return r.fulfill({ status: 503, contentType: "application/json", body: JSON.stringify({ status: "error", errorType: "timeout", error: "query timed out in expression evaluation" }) });
    });
    await tab.page.goto(`${tab.base}/query?expr=up&range=5m&refresh=1s`);
    await tab.page.locator(".notice.error", { hasText: "too long" }).waitFor();
    await new Promise((r) => setTimeout(r, 12_000));
    check(requests === 1, `${requests} requests in twelve seconds of a refresh of one second`);
  },

  async "a response slower than the refresh is shown, not aborted"(tab) {
    const aborted = [];
    tab.page.on("requestfailed", (r) => aborted.push(r.url()));
    await tab.page.route("**/querier.v1.QuerierService/SelectMergeStacktraces", async (route) => {
      await new Promise((r) => setTimeout(r, 4000));
      await route.continue().catch(() => undefined);
    });
    await tab.page.goto(`${tab.base}/profiles?range=5m&refresh=1s`);
    await tab.page.locator(".flames canvas").waitFor();
    check(aborted.length === 0, `aborted: ${aborted}`);
  },

  async "a server that is away is shown as away, and the page recovers"(tab) {
    tab.tolerated.push(/Failed to load resource|net::ERR/);
    await tab.page.goto(`${tab.base}/query?expr=up&range=5m`);
    await tab.page.locator(".plot canvas").waitFor();
    const away = (r) => r.abort("connectionrefused");
    await tab.page.route(/\/(api|-)\//, away);
    await tab.page.locator("#refresh").click();
    await tab.page.locator(".banner", { hasText: "cannot be reached" }).waitFor();
    await screenshot(tab.page, "unreachable");
    await tab.page.unroute(/\/(api|-)\//, away);
    await tab.page.locator(".banner").waitFor({ state: "detached" });
    await tab.page.locator(".plot canvas").waitFor();
  },

  async "a server that starts shows how far it is"(tab) {
    tab.tolerated.push(/status of 503/);
    const starting = (r) => {
      if (r.request().url().includes("walreplay")) return r.fulfill(success({ min: 2, max: 12, current: 6 }));
      return r.fulfill({ status: 503, contentType: "text/plain", body: "Service Unavailable" });
    };
    await tab.page.route(/\/(api|-)\//, starting);
    await tab.page.goto(`${tab.base}/`);
    await tab.page.locator(".banner", { hasText: "segment 4 of 10" }).waitFor();
    await screenshot(tab.page, "starting");
    await tab.page.unroute(/\/(api|-)\//, starting);
    await tab.page.locator(".plot canvas").waitFor();
  },
};
