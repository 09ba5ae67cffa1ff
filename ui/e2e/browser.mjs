// A browser that keeps account: every console error, request and API response is on record, so that a
// test can fail on what no check looked at.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { COLUMNS, decode } from "./columns.mjs";

/** A name of this machine that browsers do not take for it: over http its pages have none of what needs a secure context. */
export const PLAIN_HOST = "plain.test";

const ARGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
  `--host-resolver-rules=MAP ${PLAIN_HOST} 127.0.0.1`,
];

export async function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
}

/**
 * One tab on the server, with its records. `tolerated` holds patterns of console errors that a test provokes on purpose, `own`
 * the hosts that the page may use; with `recorded` false, responses of queries are not kept.
 */
export async function openTab(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light", ...options });
  const page = await context.newPage();
  const tab = { page, context, base, errors: [], foreign: [], ranges: [], instants: [], tolerated: [], own: new Set([new URL(base).host]), recorded: true };
  page.on("console", (m) => {
    if (m.type() === "error" && !tab.tolerated.some((t) => t.test(m.text()))) tab.errors.push(`${m.text()} (${m.location().url})`);
  });
  page.on("pageerror", (e) => tab.errors.push(e.stack ?? e.message));
  page.on("request", (r) => {
    const url = new URL(r.url());
    if (url.protocol !== "data:" && url.protocol !== "blob:" && !tab.own.has(url.host)) tab.foreign.push(r.url());
  });
  page.on("response", (r) => void record(tab, r));
  return tab;
}

async function record(tab, response) {
  const url = new URL(response.url());
  const list = url.pathname.endsWith("/api/v1/query_range") ? tab.ranges : url.pathname.endsWith("/api/v1/query") ? tab.instants : null;
  if (!list || !tab.recorded || response.status() !== 200) return;
  try {
    const type = response.headers()["content-type"];
    list.push({ params: Object.fromEntries(url.searchParams), type, body: type === COLUMNS ? decode(await response.body()) : await response.json() });
  } catch {
    // the page cancelled it before the body was there
  }
}

/** Repeats `probe` until it returns something, and names what was awaited if it never does. */
export async function until(what, probe, timeoutMS = 30_000) {
  const end = Date.now() + timeoutMS;
  let last;
  while (Date.now() < end) {
    try {
      const v = await probe();
      if (v) return v;
    } catch (e) {
      last = e;
    }
    await new Promise((r) => setTimeout(r, 60));
  }
  throw new Error(`waited ${timeoutMS} ms for ${what}${last ? `: ${last.message}` : ""}`);
}

export function check(ok, message) {
  if (!ok) throw new Error(message);
}

/** The arrays that uPlot has drawn, in the series' order, with the legend's names. */
export function drawn(page, panel = 0) {
  return page.evaluate((i) => {
    const plot = document.querySelectorAll(".plot")[i]?.plot;
    return plot ? { data: plot.chart.data.map((c) => Array.from(c)), width: plot.chart.width } : null;
  }, panel);
}

/** How many pixels of the canvas are near the colour of series `i`. */
export function colouredPixels(page, i = 0) {
  return page.evaluate((index) => {
    const canvas = document.querySelector(".plot canvas");
    const plain = document.createElement("canvas").getContext("2d");
    plain.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--s${index}`).trim();
    const want = [1, 3, 5].map((k) => parseInt(plain.fillStyle.slice(k, k + 2), 16));
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let n = 0;
    for (let p = 0; p < data.length; p += 4) {
      if (data[p + 3] > 200 && want.every((c, k) => Math.abs(data[p + k] - c) < 24)) n++;
    }
    return n;
  }, i);
}

export async function screenshot(page, name) {
  const dir = process.env.SCREENSHOTS;
  if (!dir) return;
  await mkdir(dir, { recursive: true });
  await page.screenshot({ path: join(dir, `${name}.png`), animations: "disabled" });
}

/** Replaces the text of the editor and runs it. */
export async function runQuery(page, expr, panel = 0) {
  await page.locator(".cm-content").nth(panel).click();
  await page.keyboard.press("ControlOrMeta+a");
  await page.keyboard.insertText(expr);
  await page.keyboard.press("ControlOrMeta+Enter");
}
