// Checks of the profiles page's other views: all services, heat maps of profiles and spans, and notes of a cut flame graph.
import { check, screenshot, until } from "./browser.mjs";
import { flame, json, respond, total, TYPE, WHOLE } from "./profiles.mjs";

const address = (page) => new URL(page.url()).searchParams;

/** The middle of a cell on the screen. */
async function cellPlace(page, row) {
  await until("a heat map with a size", () => page.evaluate(() => typeof document.querySelector(".heatmap")?.place === "function"));
  const { x, y } = await page.evaluate((at) => {
    const host = document.querySelector(".heatmap");
    const columns = Number(host.dataset.columns);
    const p = host.place({ column: columns - 3, row: at });
    const b = host.getBoundingClientRect();
    return { x: b.x + p.x, y: b.y + p.y };
  }, row);
  return [x, y];
}

/** The graph as it is cut, as it is with more boxes, and the part of one function with all of it. */
const CUT = { names: ["total", "main.run", "other", "main.idle"], total: "1000", maxSelf: "500", levels: [[0, 1000, 0, 0], [0, 700, 0, 1, 0, 300, 300, 3], [0, 250, 250, 2]].map((values) => ({ values: values.map(String) })) };
const MORE = { names: ["total", "main.run", "main.small", "main.idle"], total: "1000", maxSelf: "300", levels: [[0, 1000, 0, 0], [0, 700, 450, 1, 0, 300, 300, 3], [0, 250, 250, 2]].map((values) => ({ values: values.map(String) })) };
const PART = { names: ["total", "main.run", "main.small"], total: "700", maxSelf: "450", levels: [[0, 700, 0, 0], [0, 700, 450, 1], [0, 250, 250, 2]].map((values) => ({ values: values.map(String) })) };

async function respondCut(page) {
  const requested = await respond(page);
  await page.route("**/querier.v1.QuerierService/SelectMergeStacktraces", (r) => {
    const q = r.request().postDataJSON();
    requested.push({ method: "SelectMergeStacktraces", ...q });
    return r.fulfill(json(q.format ? { dot: "digraph x {}" } : { flamegraph: q.stackTraceSelector ? PART : q.maxNodes === "8192" ? CUT : MORE }));
  });
  await page.route("**/querier.v1.QuerierService/SelectFunctions", (r) => {
    requested.push({ method: "SelectFunctions", ...r.request().postDataJSON() });
    return r.fulfill(json({ functions: [{ name: "main.run", self: "450", total: "700" }, { name: "main.idle", self: "300", total: "300" }, { name: "main.small", self: "250", total: "250" }], total: "1000", count: "3" }));
  });
  return requested;
}

export const checks = {
  async "all services are an overview, and one opens"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.goto(`${tab.base}/profiles?range=30m`);
    const rows = page.locator(".services tbody tr");
    await until("two services", async () => (await rows.count()) === 2);
    const q = requested.find((r) => r.method === "SelectSeries");
    check(q.groupBy[0] === "service_name" && q.profileTypeID === TYPE && !q.exemplarType, JSON.stringify(q));
    check(/^ferula[\s\S]*75\.0 %$/.test((await rows.first().innerText()).trim()), await rows.first().innerText());
    check(await rows.first().locator(".course path").evaluate((e) => e.getAttribute("d").length > 100), "it has no course");
    await total(page, 1e9);
    await screenshot(page, "services");
    await page.getByLabel("Find services").fill("sho");
    await until("the search in the address", () => address(page).get("services") === "sho");
    await page.reload();
    await until("one service after reloading", async () => (await rows.count()) === 1);
    await rows.getByRole("button", { name: "shop" }).focus();
    await page.keyboard.press("Enter");
    await until("its address", () => address(page).get("service") === "shop" && !address(page).has("services"));
    await page.locator(".plot canvas").waitFor();
    check(requested.findLast((r) => r.method === "SelectSeries").labelSelector === '{service_name="shop"}', "another selector was sent");
    check((await page.getByRole("radio", { name: "Services" }).count()) === 0, "one service has an overview of services");
  },

  async "a cell of the heat map lists its profiles, and one opens"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.goto(`${tab.base}/profiles?range=30m&over=heat`);
    await until("twenty rows", async () => (await page.locator(".heatmap").getAttribute("data-rows")) === "20");
    await page.mouse.move(...(await cellPlace(page, 0)));
    await page.locator(".heatmap .tip", { hasText: "3 profiles" }).waitFor();
    await page.mouse.down();
    await page.mouse.up();
    const rows = page.locator(".cell-list tbody tr");
    await until("two profiles of the cell", async () => (await rows.count()) === 2);
    check((await rows.first().innerText()).includes("5 ms") && (await rows.first().innerText()).includes("pod-2"), await rows.first().innerText());
    const q = requested.findLast((r) => r.method === "SelectHeatmap" && r.exemplarType);
    check(q.exemplarType === "EXEMPLAR_TYPE_INDIVIDUAL" && Number(q.end) - Number(q.start) < 60_000, JSON.stringify(q));
    await screenshot(page, "profile-heat");
    const cell = address(page).get("cell");
    await page.reload();
    await until("the list after reloading", async () => (await rows.count()) === 2);
    check(address(page).get("cell") === cell, page.url());
    await rows.first().getByRole("button").click();
    await total(page, 2e7);
    check(address(page).get("id") === "profile-2" && address(page).get("over") === "heat", page.url());
    await page.locator(".cell-list tr.current").waitFor();
    await page.getByRole("button", { name: "Close the list" }).click();
    await page.locator(".heatmap canvas").focus();
    await page.keyboard.press("ArrowRight");
    await page.locator(".heatmap .tip", { hasText: "1 profile" }).waitFor();
    await page.keyboard.press("Enter");
    await until("the other cell", async () => (await rows.count()) === 1 && (await rows.first().innerText()).includes("190 ms"));
  },

  async "a heat map of spans opens the samples of one span"(tab) {
    const { page } = tab;
    const requested = await respond(page);
    await page.goto(`${tab.base}/profiles?range=30m`);
    await page.getByRole("radio", { name: "Spans" }).click();
    await until("twenty rows", async () => (await page.locator(".heatmap").getAttribute("data-rows")) === "20");
    check(requested.findLast((r) => r.method === "SelectHeatmap").queryType === "HEATMAP_QUERY_TYPE_SPAN", "profiles were requested");
    await page.mouse.click(...(await cellPlace(page, 0)));
    await page.locator(".cell-list").getByRole("button", { name: "00000000000000f2" }).click();
    await until("the span's request", () => requested.findLast((r) => r.method === "SelectMergeStacktraces")?.spanSelector?.[0] === "00000000000000f2");
    await page.locator("h2", { hasText: "One span" }).waitFor();
    check(address(page).get("span") === "00000000000000f2", page.url());
    await page.locator("#whole-range").click();
    await until("the whole range", () => !address(page).has("span") && !address(page).has("id"));
  },

  async "a cut flame graph is named as such, its table is exact, and a focus is loaded whole"(tab) {
    const { page } = tab;
    const requested = await respondCut(page);
    await page.goto(`${tab.base}/profiles?over=lines&view=both`);
    await page.locator(".note", { hasText: "25.0 % is in other" }).waitFor();
    await page.locator(".functions[data-exact] tbody tr", { hasText: "main.small" }).waitFor();
    check((await page.locator(".functions tbody tr").first().innerText()).replace(/[\s⇅]+/g, " ").includes("main.run 450 ns 45.0 %"), await page.locator(".functions tbody tr").first().innerText());
    await screenshot(page, "cut");
    const canvas = page.locator(".flames canvas");
    await canvas.scrollIntoViewIfNeeded();
    const box = await canvas.boundingBox();
    await page.mouse.click(box.x + 0.3 * box.width, box.y + 25);
    await until("the function's own stacks", async () => (await flame(page))?.total === 700);
    const q = requested.findLast((r) => r.stackTraceSelector);
    check(JSON.stringify(q.stackTraceSelector) === '{"callSite":[{"name":"main.run"}]}', JSON.stringify(q));
    await page.locator("[data-part]").waitFor();
    check((await page.locator(".panel-bar .stats", { hasText: "total" }).last().innerText()).includes("1 µs"), "shares are of the part");
    await page.reload();
    await until("the focus after reloading", async () => (await flame(page))?.total === 700);
    await page.getByRole("navigation", { name: "Focused function" }).getByRole("button", { name: "all" }).click();
    await until("the whole", async () => (await flame(page))?.total === 1000);
    await page.getByRole("button", { name: /Draw up to/ }).click();
    await until("more boxes", () => address(page).get("nodes") === "32768");
    await until("no note", async () => (await page.locator("[data-other]").count()) === 0);
  },

  async "colours, packages, ends of names and the call graph"(tab) {
    const { page } = tab;
    await respondCut(page);
    await page.route("**/querier.v1.QuerierService/SelectMergeStacktraces", (r) => r.fulfill(json(r.request().postDataJSON().format ? { dot: "digraph x {}" } : { flamegraph: WHOLE })));
    await page.goto(`${tab.base}/profiles?over=lines`);
    await total(page, 1e9);
    await page.locator(".packages").getByRole("button", { name: /tsdb/ }).click();
    await until("the package in the address", () => nameOf(address(page).get("find")));
    await until("its share", async () => (await page.locator(".matched").innerText()).includes("40.0 %"));
    await page.getByLabel("Colour by self").check();
    await page.getByLabel("Trim names on the left").check();
    await until("both in the address", () => address(page).get("color") === "self" && address(page).get("ends") === "1");
    check((await page.locator(".packages").count()) === 0, "packages have no colours now");
    await screenshot(page, "colour-by-self");
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Call graph" }).click()]);
    check(file.suggestedFilename() === "process_cpu-cpu.dot", file.suggestedFilename());
  },

  async "matchers are completed with names and values"(tab) {
    const { page } = tab;
    await respond(page);
    await page.goto(`${tab.base}/profiles?over=lines`);
    await total(page, 1e9);
    const box = page.getByLabel("Label matchers");
    const options = () => page.locator("#matcher-options option").evaluateAll((all) => all.map((o) => o.value));
    await box.fill("po");
    await until("names", async () => (await options()).includes('pod="'));
    await box.fill('pod="');
    await until("values", async () => (await options()).includes('pod="shop"'));
    await box.fill('pod="shop", serv');
    await until("the next name", async () => (await options()).includes('pod="shop", service_name="'));
    await box.fill('pod="shop"');
    await page.keyboard.press("Enter");
    await until("the matcher in the address", () => address(page).get("match") === 'pod="shop"');
  },

  async "the server's own profiles have exact functions and a heat map"(tab) {
    const { page } = tab;
    const call = async (method, body) => {
      const r = await fetch(`${tab.base}/querier.v1.QuerierService/${method}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      return r.json();
    };
    const now = Date.now();
    const message = { profileTypeID: TYPE, labelSelector: "{}", start: String(now - 600_000), end: String(now) };
    const whole = await until("profiles", async () => { const f = await call("SelectFunctions", { ...message, maxNodes: "20000" }); return Number(f.total) > 0 && f; }, 60_000);
    const cut = (await call("SelectMergeStacktraces", { ...message, maxNodes: "20" })).flamegraph;
    check(cut.names.includes("other") && cut.total === whole.total, "twenty boxes are enough for everything, or totals differ");
    const self = whole.functions.reduce((n, f) => n + Number(f.self ?? 0), 0);
    const alone = Number(cut.levels[0].values[2]); // of samples without a stack
    check(self + alone === Number(whole.total), `functions come to ${self} and ${alone} of ${whole.total}`);
    await page.goto(`${tab.base}/profiles?range=10m&over=heat`);
    await page.locator(".heatmap canvas").waitFor();
    await page.locator(".heatmap canvas").focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    await page.locator(".cell-list tbody button").first().click();
    await until("the flame graph of one profile", async () => address(page).has("id") && (await flame(page))?.total > 0);
    await screenshot(page, "profile-heat-own");
  },
};

const nameOf = (find) => find !== null && find.includes("tsdb");
