// Checks with ten thousand series: all are drawn, and the page does what it does with ten.
import { check, screenshot, until } from "./browser.mjs";
import { labelsOf, manyServer, valueOf } from "./many.mjs";

const COUNT = 10_000;

/** How many lines the picture has, and how many of its pixels are coloured. */
const picture = (page) => page.evaluate(() => {
  const plot = document.querySelector(".plot")?.plot;
  const canvas = document.querySelector(".plot canvas");
  if (!plot?.crowd || !canvas) return null;
  const { left, top, width, height } = plot.chart.bbox;
  const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
  let coloured = 0;
  for (let p = 0; p < data.length; p += 4) if (data[p + 3] > 40 && Math.abs(data[p] - data[p + 2]) > 24) coloured++;
  return { lines: plot.crowd.lines, share: coloured / (width * height) };
});

async function openMany(tab, path, json = false) {
  const server = await manyServer(tab.base, COUNT, json);
  tab.own.add(new URL(server.url).host);
  tab.recorded = false;
  await tab.page.goto(server.url + path);
  return server;
}

const drawAll = async (tab) => {
  await tab.page.locator("[data-omitted]").getByRole("button").click({ timeout: 60_000 });
  await until("a picture of all lines", async () => { const p = await picture(tab.page); return p?.lines === COUNT && p.share > 0.2; }, 60_000);
};

const address = (page) => new URL(page.url()).searchParams;

export const checks = {
  async "ten thousand series are drawn, and legend, hover and address work with them"(tab) {
    const { page } = tab;
    const server = await openMany(tab, "/query?expr=many&range=1h");
    try {
      await page.locator("[data-omitted]").waitFor({ timeout: 60_000 });
      check((await page.locator("[data-omitted]").getAttribute("data-omitted")) === String(COUNT - 200), "the note counts otherwise");
      check(page.workers().length === 1, "no worker scans the response");
      const first = await page.evaluate(() => document.querySelector(".plot").plot.columns.labels.map((l) => Number(l.shard)));
      check(first.length === 200 && Math.min(...first) >= COUNT - 1200, "not the largest are drawn first");
      await drawAll(tab);
      await screenshot(page, "ten-thousand");
      const right = await page.evaluate((want) => { const { columns } = document.querySelector(".plot").plot; return columns.values[7777][3] === want && columns.labels[7777].shard === "7777"; }, Number(valueOf(7777, 3)));
      check(right, "a value differs from the response");
      check((await page.locator(".legend tbody tr").count()) < 100, "the legend has all rows in the document");
      await page.locator(".legend-scroll").evaluate((e) => { e.scrollTop = e.scrollHeight; });
      await page.locator(".legend tbody tr", { hasText: `shard="${COUNT - 1}"` }).waitFor();
      const over = await page.locator(".u-over").boundingBox();
      await page.mouse.move(over.x + over.width / 2, over.y + over.height / 2);
      await page.locator(".tip-labels", { hasText: "shard" }).waitFor();
      await page.getByLabel("Filter the series").fill('shard="4321"');
      await page.locator(".legend tbody button").first().click();
      await until("one line", async () => (await picture(page)).lines === 1);
      check(/^only:[0-9a-z]+,all/.test(address(page).get("view")), page.url());
      await page.locator(".legend tbody button").first().click();
      await until("all again", async () => (await picture(page)).lines === COUNT);
      check(!address(page).get("view").includes("only:"), page.url());
    } finally {
      server.close();
    }
  },

  async "without workers, and from JSON, the same is drawn"(tab) {
    const { page } = tab;
    tab.tolerated.push(/scan\.worker|net::ERR/);
    for (const [worker, json] of [[false, false], [false, true], [true, true]]) {
      if (!worker) await page.route("**/scan.worker*", (r) => r.abort("failed"));
      else await page.unroute("**/scan.worker*");
      const server = await openMany(tab, "/query?expr=many&range=5m", json);
      try {
        await drawAll(tab);
        check(page.workers().length === Number(worker), `${page.workers().length} workers run`);
        check(await page.evaluate((want) => document.querySelector(".plot").plot.columns.values[42][1] === want, Number(valueOf(42, 1))), "a value differs from the response");
      } finally {
        server.close();
      }
    }
  },

  async "a table of ten thousand rows has those in sight, and sorts all of them"(tab) {
    const { page } = tab;
    const server = await openMany(tab, "/query?expr=many&tab=table");
    try {
      await page.locator(".long-table tbody tr").first().waitFor();
      check((await page.locator(".long-table tbody tr").count()) < 120, "all rows are in the document");
      const heights = await page.locator(".long-table tbody tr:not([aria-hidden])").evaluateAll((rows) => [...new Set(rows.map((r) => r.getBoundingClientRect().height))]);
      check(heights.length === 1 && heights[0] === 33, `rows are ${heights} pixels high`);
      await page.locator("th button", { hasText: "shard" }).click();
      await page.locator("th button", { hasText: "shard" }).click();
      const scroll = (to) => page.locator(".long-table").evaluate((e, share) => { e.scrollTop = e.scrollHeight * share; }, to);
      await until("the last shard first", async () => (await page.locator(".long-table tbody tr:not([aria-hidden])").first().innerText()).includes(labelsOf(COUNT - 1).pod));
      await scroll(1);
      await page.locator(".long-table tbody tr", { hasText: labelsOf(0).pod }).waitFor();
      await page.getByLabel("Find in the rows").fill(labelsOf(5000).pod);
      await until("one row", async () => (await page.locator("table.result tbody tr").count()) === 1);
    } finally {
      server.close();
    }
  },
};
