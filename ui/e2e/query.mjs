// Checks of the query page.
import { check, colouredPixels, drawn, runQuery, screenshot, until } from "./browser.mjs";

/** Three lines with known values, whatever the server has scraped. */
const THREE = ["a", "b", "c"].map((k, i) => `label_replace(vector(${i + 1}), "k", "${k}", "", "")`).join(" or ");

const last = (list) => list[list.length - 1];

const open = (tab, path) => tab.page.goto(tab.base + path);

/** Whether what is drawn is the newest response, sample by sample, with gaps where the response has none. */
function equal(plot, result) {
  const [times, ...columns] = plot.data;
  const series = result.body.data.result;
  if (columns.length !== series.length) return false;
  return series.every((s, i) => {
    const at = new Map((s.values ?? []).map(([t, v]) => [Math.round(t * 1000), Number(v)]));
    return times.every((t, x) => (columns[i][x] ?? null) === (at.get(Math.round(t * 1000)) ?? null));
  }) && series.some((s) => s.values.length > 0);
}

async function plotEqualsAnswer(tab, expr) {
  await until(`a plot of ${expr} that equals the API's response`, async () => {
    const result = last(tab.ranges);
    const plot = await drawn(tab.page);
    return result?.params.query === expr && plot && equal(plot, result);
  });
}

const visible = (tab, selector) => tab.page.locator(selector).first().waitFor({ timeout: 30_000 });

export const checks = {
  async "a visitor without a query sees a graph at once"(tab) {
    const began = Date.now();
    await open(tab, "/");
    await until("a first line", async () => (await drawn(tab.page))?.data.slice(1).some((c) => c.some((v) => v !== null)));
    check(Date.now() - began < 5000, `the first graph took ${Date.now() - began} ms`);
    check((await colouredPixels(tab.page)) > 30, "the canvas has no coloured pixels");
    check((await tab.page.locator(".chip").count()) > 1, "no example queries");
    await tab.page.locator(".chip", { hasText: "Targets up" }).click();
    await plotEqualsAnswer(tab, "up");
    check(new URL(tab.page.url()).searchParams.get("expr") === "up", "the example is not in the address");
  },

  async "a typed query is completed, run, and drawn as the API returned it"(tab) {
    await open(tab, "/query?expr=up&range=5m");
    await visible(tab, ".cm-content");
    await tab.page.locator(".cm-content").click();
    await tab.page.keyboard.press("ControlOrMeta+a");
    await tab.page.keyboard.type("scrape_dur", { delay: 30 });
    await tab.page.locator(".cm-tooltip-autocomplete li", { hasText: /^scrape_duration_seconds/ }).first().waitFor();
    await screenshot(tab.page, "completion");
    await until("the completion to take Enter", async () => {
      await tab.page.keyboard.press("Enter");
      return (await tab.page.locator(".cm-content").innerText()).trim() === "scrape_duration_seconds";
    });
    await tab.page.keyboard.press("Enter");
    await plotEqualsAnswer(tab, "scrape_duration_seconds");
    check((await colouredPixels(tab.page)) > 30, "the canvas has no coloured pixels");
  },

  async "label names and values are completed"(tab) {
    await open(tab, "/query?expr=up");
    await tab.page.locator(".cm-content").click();
    await tab.page.keyboard.press("ControlOrMeta+a");
    await tab.page.keyboard.type("up{jo", { delay: 40 });
    await tab.page.locator(".cm-tooltip-autocomplete li", { hasText: /^job/ }).waitFor();
    await tab.page.keyboard.type('b="', { delay: 40 });
    await tab.page.locator(".cm-tooltip-autocomplete li").first().waitFor();
  },

  async "the tooltip shows the nearest line's labels and value"(tab) {
    await open(tab, `/query?range=5m&expr=${encodeURIComponent(THREE)}`);
    await plotEqualsAnswer(tab, THREE);
    const over = await tab.page.locator(".u-over").boundingBox();
    // The three lines lie at 1, 2 and 3: near the top it must be the third, near the bottom the first.
    for (const [share, key, value] of [[0.12, "c", "3"], [0.9, "a", "1"]]) {
      await tab.page.mouse.move(over.x + over.width / 2, over.y + over.height * share);
      await until(`a tooltip with ${value}`, async () => (await tab.page.locator(".tip-value").innerText()) === value);
      check((await tab.page.locator(".tip-labels").innerText()).replace(/\s+/g, " ") === `k ${key}`, "the tooltip has other labels");
    }
    check(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/.test(await tab.page.locator(".tip-time").innerText()), "the tooltip has no time");
    await screenshot(tab.page, "tooltip");
    await tab.page.mouse.move(5, 5);
    await until("the tooltip to go", async () => !(await tab.page.locator(".tip").isVisible()));
  },

  async "the legend isolates and toggles lines and shows their figures"(tab) {
    await open(tab, `/query?range=5m&expr=${encodeURIComponent(THREE)}`);
    await plotEqualsAnswer(tab, THREE);
    const rows = tab.page.locator(".legend tbody tr");
    check((await rows.count()) === 3, "the legend does not list three series");
    check((await rows.nth(2).locator(".fig-last").innerText()) === "3", "the last value is not 3");
    const off = async () => (await rows.evaluateAll((list) => list.map((r) => r.className))).join();
    const shown = () => tab.page.evaluate(() => document.querySelector(".plot").plot.chart.series.slice(1).map((s) => s.show).join());
    const button = (i) => rows.nth(i).locator("button");
    const steps = [[() => button(1).click(), "off,,off", "false,true,false"], [() => button(0).click({ modifiers: ["Shift"] }), ",,off", "true,true,false"],
      [() => button(0).click({ modifiers: ["Shift"] }), "off,,off", "false,true,false"], [() => button(1).click(), ",,", "true,true,true"]];
    for (const [act, classes, shows] of steps) {
      await act();
      await until(`legend ${classes}`, async () => (await off()) === classes && (await shown()) === shows);
    }
  },

  async "choosing a range changes the request"(tab) {
    await open(tab, "/query?expr=up&range=5m");
    await plotEqualsAnswer(tab, "up");
    const before = last(tab.ranges).params;
    await tab.page.locator(".range-button").click();
    await screenshot(tab.page, "range");
    await tab.page.locator('[data-range="3h"]').click();
    await until("a request over three hours", () => Number(last(tab.ranges).params.end) - Number(last(tab.ranges).params.start) > 10_000);
    const after = last(tab.ranges).params;
    check(Number(after.step) > Number(before.step), `step ${before.step} did not grow: ${after.step}`);
    check(new URL(tab.page.url()).searchParams.get("range") === "3h", "the range is not in the address");
    await tab.page.goBack();
    await until("the earlier range", () => Number(last(tab.ranges).params.end) - Number(last(tab.ranges).params.start) <= 300);
    await tab.page.locator('.step input').fill("30s");
    await tab.page.keyboard.press("Enter");
    await until("the given step", () => last(tab.ranges).params.step === "30");
  },

  async "dragging zooms in, and the buttons move the range"(tab) {
    await open(tab, "/query?expr=up&range=10m");
    await plotEqualsAnswer(tab, "up");
    const over = await tab.page.locator(".u-over").boundingBox();
    const y = over.y + over.height / 2;
    await tab.page.mouse.move(over.x + over.width * 0.5, y);
    await tab.page.mouse.down();
    await tab.page.mouse.move(over.x + over.width * 0.75, y, { steps: 5 });
    await tab.page.mouse.up();
    const span = () => { const p = last(tab.ranges).params; return Number(p.end) - Number(p.start); };
    await until("a quarter of the range", () => span() > 130 && span() < 160);
    check(new URL(tab.page.url()).searchParams.has("end"), "the end is not in the address");
    await tab.page.getByLabel("Zoom out").click();
    await until("twice of it", () => span() > 270 && span() < 310);
    const end = Number(last(tab.ranges).params.end);
    await tab.page.getByLabel("Earlier").click();
    await until("an earlier end", () => Number(last(tab.ranges).params.end) < end);
  },

  async "gaps stay gaps, and what cannot be drawn is counted"(tab) {
    const gappy = "vector(1) and on() (vector(time()) % 60 < 30)";
    await open(tab, `/query?range=5m&step=5s&expr=${encodeURIComponent(gappy)}`);
    await plotEqualsAnswer(tab, gappy);
    const { data } = await drawn(tab.page);
    check(data[1].includes(null) && data[1].includes(1), "the column has no gaps");
    await runQuery(tab.page, "vector(1) / vector(0)");
    await tab.page.locator(".note", { hasText: "NaN or infinite" }).waitFor();
    await runQuery(tab.page, "vector(1) > 2");
    await tab.page.locator(".empty", { hasText: "No data" }).waitFor();
  },

  async "the table shows every value the API sent"(tab) {
    await open(tab, "/query?expr=scrape_samples_scraped");
    await plotEqualsAnswer(tab, "scrape_samples_scraped");
    await tab.page.getByRole("radio", { name: "Table" }).click();
    await visible(tab, "table.result tbody tr");
    await until("the table to equal the response", async () => {
      const want = last(tab.instants).body.data.result.map((s) => s.value[1]).sort().join();
      return (await tab.page.locator("table.result .value").allInnerTexts()).sort().join() === want;
    });
    check(new URL(tab.page.url()).searchParams.get("tab") === "table", "the tab is not in the address");
    await screenshot(tab.page, "table-light");
    await runQuery(tab.page, "1 + 1");
    await until("a scalar", async () => (await tab.page.locator(".single output").innerText()) === "2");
    await runQuery(tab.page, "up[1m]");
    await until("raw samples", async () => (await tab.page.locator(".samples > div").count()) > 0);
  },

  async "areas are stacked"(tab) {
    await open(tab, `/query?range=5m&expr=${encodeURIComponent(THREE)}`);
    await plotEqualsAnswer(tab, THREE);
    await tab.page.getByLabel("Stacked").check();
    await until("sums", async () => (await drawn(tab.page)).data.slice(1).map((c) => c[0]).join() === "6,3,1");
    // The areas are pale: an area as strong as its line would be one whose colour could not be read.
    check((await colouredPixels(tab.page)) < 10_000, "the areas are not pale");
    await screenshot(tab.page, "stacked");
  },

  async "queries are added, removed and kept in the address"(tab) {
    await open(tab, "/query?expr=up&range=5m");
    await visible(tab, ".plot canvas");
    await tab.page.getByRole("button", { name: "Add query" }).click();
    await runQuery(tab.page, "scrape_samples_scraped", 1);
    await until("two graphs", async () => (await tab.page.locator(".plot canvas").count()) === 2);
    await tab.page.reload();
    await until("two graphs after reloading", async () => (await tab.page.locator(".plot canvas").count()) === 2);
    await screenshot(tab.page, "two-queries");
    await tab.page.getByLabel("Remove query 1").click();
    await until("one graph", async () => (await tab.page.locator(".plot canvas").count()) === 1);
    check((await tab.page.locator(".cm-content").innerText()).trim() === "scrape_samples_scraped", "the wrong query was removed");
  },

  async "past queries come back with Up and from the list"(tab) {
    await open(tab, "/query?expr=up&range=5m");
    await visible(tab, ".cm-content");
    for (const expr of ["vector(11)", "vector(22)"]) {
      await runQuery(tab.page, expr);
      await plotEqualsAnswer(tab, expr);
    }
    await tab.page.keyboard.press("ArrowUp");
    check((await tab.page.locator(".cm-content").innerText()).trim() === "vector(11)", "Up did not bring the earlier query");
    await tab.page.keyboard.press("ArrowDown");
    check((await tab.page.locator(".cm-content").innerText()).trim() === "vector(22)", "Down did not bring the draft back");
    await tab.page.getByRole("button", { name: "Past queries" }).click();
    await tab.page.locator(".history li button", { hasText: "vector(11)" }).click();
    await plotEqualsAnswer(tab, "vector(11)");
  },

  async "the metrics explorer finds a metric and runs it"(tab) {
    await open(tab, "/query?expr=up&range=5m");
    await visible(tab, ".plot canvas");
    await tab.page.getByRole("button", { name: "Metrics" }).click();
    await tab.page.locator("dialog input").fill("go_gorou");
    await tab.page.locator(".metrics code", { hasText: /^go_goroutines$/ }).waitFor();
    check((await tab.page.locator(".metrics li").first().innerText()).includes("gauge"), "the type is missing");
    await screenshot(tab.page, "metrics");
    await tab.page.locator(".metric-pick").first().click();
    await plotEqualsAnswer(tab, "go_goroutines");
  },

  async "Prometheus' own links open"(tab) {
    await open(tab, "/graph?g0.expr=up&g0.tab=0&g0.range_input=30m&g1.expr=vector(7)&g1.tab=1");
    await until("a request over half an hour", () => { const p = last(tab.ranges)?.params; return p && Number(p.end) - Number(p.start) > 1700; });
    await until("a table", async () => (await tab.page.locator(".panel").nth(1).locator(".value").innerText()) === "7");
  },

  async "it refreshes by itself when set to"(tab) {
    await open(tab, "/query?expr=up&range=5m&refresh=1s");
    await until("three requests", () => tab.ranges.length >= 3);
    await tab.page.getByLabel("Auto-refresh").selectOption("0");
    await tab.page.waitForTimeout(300);
    const n = tab.ranges.length;
    await tab.page.waitForTimeout(1500);
    check(tab.ranges.length <= n + 1, "it went on refreshing");
  },
};
