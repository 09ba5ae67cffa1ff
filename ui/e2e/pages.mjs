// Checks of the other pages, the themes and small screens.
import { check, screenshot, until } from "./browser.mjs";

const theme = (page) => page.evaluate(() => ({ name: document.documentElement.dataset.theme, back: getComputedStyle(document.body).backgroundColor }));

const ADDRESSES = ["/query?expr=up", "/query?expr=up&tab=table", "/profiles", "/targets", "/status", "/tsdb-status", "/flags", "/config"];

export const checks = {
  async "targets are listed with their health"(tab) {
    await tab.page.goto(`${tab.base}/targets`);
    await tab.page.locator("table.targets .badge").first().waitFor();
    const result = await (await fetch(`${tab.base}/api/v1/targets`)).json();
    check((await tab.page.locator("table.targets .endpoint").count()) === result.data.activeTargets.length, "not every target is listed");
    await screenshot(tab.page, "targets-light");
    await tab.page.getByRole("button", { name: "Discovered labels" }).first().click();
    await tab.page.locator(".discovered", { hasText: "__address__" }).waitFor();
    await tab.page.getByLabel("Filter by address").fill("no-such-target");
    await tab.page.locator(".empty", { hasText: "No target matches" }).waitFor();
  },

  async "status pages show what the API returns"(tab) {
    await tab.page.goto(`${tab.base}/status`);
    await tab.page.locator(".facts", { hasText: "Go version" }).waitFor();
    await tab.page.locator(".facts", { hasText: "Running for" }).waitFor();
    await screenshot(tab.page, "status-light");
    await tab.page.getByRole("link", { name: "TSDB" }).click();
    await tab.page.locator(".top-list code").first().waitFor();
    check(new URL(tab.page.url()).pathname.endsWith("/tsdb-status"), "the address did not change");
    await screenshot(tab.page, "tsdb-light");
    await tab.page.getByRole("link", { name: "Flags" }).click();
    await tab.page.locator("table.flags code").first().waitFor();
    await tab.page.getByRole("link", { name: "Configuration" }).click();
    await tab.page.locator(".config .yaml, .config .empty").first().waitFor();
    await tab.page.goBack();
    await tab.page.locator("table.flags").waitFor();
  },

  async "stores are listed with what is wrong with them"(tab) {
    const { page } = tab;
    const labelSets = [{ prometheus: "a", replica: "0" }];
    const data = {
      sidecar: [
        { name: "10.0.0.1:10901", lastCheck: new Date().toISOString(), lastError: null, labelSets, minTime: 1700000000000, maxTime: 9223372036854775807 },
        { name: "10.0.0.2:10901", lastCheck: new Date().toISOString(), lastError: "connection refused", labelSets: [], minTime: -62135596800000, maxTime: 1700000000000 },
      ],
    };
    await page.route("**/api/v1/stores", (r) => r.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify({ status: "success", data }) }));
    await page.goto(`${tab.base}/stores`);
    await page.locator(".badge", { hasText: "1 of 2 up" }).waitFor();
    check((await page.locator(".stores .target-error").innerText()) === "connection refused", "the error is not shown");
    check((await page.locator(".stores").innerText()).includes("the beginning"), "an open range is not in words");
    await screenshot(page, "stores");
  },

  async "a rule on history shows when it would have fired"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/backtest`);
    await page.locator(".empty", { hasText: "Which alerts would have fired?" }).waitFor();
    await page.getByLabel("Expression or rules").fill("count(up) > 0");
    await page.keyboard.press("Enter");
    await page.locator('[data-pages="1"]').waitFor();
    await page.locator(".lane .firing").first().waitFor();
    await page.locator(".backtest-graph .band.firing").first().waitFor({ state: "attached" });
    const threshold = page.getByLabel("Threshold", { exact: true });
    await threshold.fill("1000");
    await threshold.press("Tab");
    await page.locator('[data-pages="0"]').waitFor();
    check(new URL(page.url()).searchParams.get("expr") === "count(up) > 1000", "the address does not have the threshold");
    await page.reload();
    await page.locator('[data-pages="0"]').waitFor();
    await page.getByLabel("Expression or rules").fill("alert: Up\nexpr: count(up) > 0\nlabels: {severity: page}\nannotations: {summary: '{{ $value }} targets'}");
    await page.getByRole("button", { name: "Run" }).click();
    await page.locator(".annotations", { hasText: "targets" }).first().waitFor();
    await screenshot(page, "backtest");
  },

  async "the way to another page and back keeps the query"(tab) {
    await tab.page.goto(`${tab.base}/query?expr=vector(3)&range=5m`);
    await tab.page.locator(".plot canvas").waitFor();
    await tab.page.getByRole("link", { name: "Targets" }).click();
    await tab.page.locator("table.targets").first().waitFor();
    await tab.page.getByRole("link", { name: "Query" }).click();
    await until("the query", async () => (await tab.page.locator(".cm-content").innerText()).trim() === "vector(3)");
  },

  async "the theme follows the system until it is chosen, and is remembered"(tab) {
    const { page } = tab;
    await page.goto(`${tab.base}/query?expr=up&range=5m`);
    await page.locator(".plot canvas").waitFor();
    await screenshot(page, "query-light");
    check((await theme(page)).name === "light", "it does not begin light");
    await page.emulateMedia({ colorScheme: "dark" });
    await until("dark with the system", async () => (await theme(page)).name === "dark");
    const dark = await theme(page);
    await screenshot(page, "query-dark");
    await page.locator("#theme").click();
    await until("light by choice", async () => (await theme(page)).name === "light");
    check((await theme(page)).back !== dark.back, "the background is the same");
    await page.reload();
    check((await theme(page)).name === "light", "the choice was forgotten");
    await page.locator("#theme").click();
    await page.emulateMedia({ colorScheme: "light" });
    await until("dark by choice", async () => (await theme(page)).name === "dark");
    for (const [name, path] of [["targets", "/targets"], ["tsdb", "/tsdb-status"], ["table", "/query?expr=up&tab=table"]]) {
      await page.goto(tab.base + path);
      await page.locator("table").first().waitFor();
      await screenshot(page, `${name}-dark`);
    }
  },

  async "nothing sticks out of a phone's screen"(tab) {
    await tab.page.setViewportSize({ width: 390, height: 844 });
    for (const path of ADDRESSES) {
      await tab.page.goto(tab.base + path);
      await tab.page.locator("table, .facts, .plot canvas, .yaml, .empty").first().waitFor();
      const wide = await tab.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(wide <= 0, `${path} is ${wide} px too wide`);
      await screenshot(tab.page, `phone-${path.replace(/\W+/g, "-").replace(/^-/, "")}`);
    }
  },

  async "everything can be reached and named without a mouse"(tab) {
    await tab.page.goto(`${tab.base}/query?expr=up&range=5m`);
    await tab.page.locator(".legend tbody tr").first().waitFor();
    const nameless = await tab.page.evaluate(() => [...document.querySelectorAll("button, input, select, a")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label")?.textContent.trim()))
      .map((e) => e.outerHTML.slice(0, 120)));
    check(nameless.length === 0, `without a name: ${nameless.join(" ")}`);
    await tab.page.locator(".range-button").focus();
    await tab.page.keyboard.press("Enter");
    await tab.page.locator(".range-form").waitFor();
    await tab.page.keyboard.press("Escape");
    await tab.page.locator(".range-form").waitFor({ state: "detached" });
    check(await tab.page.evaluate(() => document.activeElement.classList.contains("range-button")), "the focus did not return");
    await tab.page.locator(".legend tbody button").first().focus();
    await tab.page.keyboard.press("Enter");
  },

  async "assets are kept, and unknown paths are not the page"(tab) {
    const html = await (await fetch(`${tab.base}/`)).text();
    const script = /src="\.\/(assets\/[^"]+\.js)"/.exec(html)[1];
    const asset = await fetch(`${tab.base}/${script}`);
    check(asset.headers.get("cache-control").includes("immutable"), "assets are not immutable");
    check((await fetch(`${tab.base}/assets/none.js`)).status === 404, "an unknown asset is not 404");
    check((await fetch(`${tab.base}/`)).headers.get("content-security-policy").startsWith("default-src 'self'"), "no policy");
  },
};
