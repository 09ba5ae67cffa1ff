// What ten thousand series, and ten thousand boxes of a flame graph, cost the page:  node e2e/perf.mjs http://127.0.0.1:9490 [file]
//
// Chromium's own trace at a processor slowed down four times, as a phone's or a busy laptop's. Printed, and with a file
// written there: its name ends in .md or, for the bench, in .json. Nothing is asserted: the figures depend on the machine.
//
//   FORM=json    range queries get JSON instead of columns
//   QUERY        a query of the server itself instead of the 10,000 made series, over the last 6 minutes in steps of 1 s
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { launch, until } from "./browser.mjs";
import { flameOf, manyServer } from "./many.mjs";

const COUNT = 10_000;
const SLOWER = 4;
const STEP = 6; // seconds; 600 steps an hour
const BOXES = 10_000;
const base = (process.argv[2] ?? "http://127.0.0.1:9490").replace(/\/$/, "");

const json = process.env.FORM === "json";
const { QUERY } = process.env;
const server = QUERY ? { url: base, close: () => undefined } : await manyServer(base, COUNT, json);
const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
const page = await context.newPage();
if (json && QUERY) await page.route("**/api/v1/query_range?*", (r) => r.continue({ headers: { ...r.request().headers(), accept: "application/json" } }));
const cdp = await context.newCDPSession(page);
await cdp.send("HeapProfiler.enable");
await cdp.send("Emulation.setCPUThrottlingRate", { rate: SLOWER });

/**
 * Runs `act` under a trace; returns what the main thread's tasks took of a processor in ms, longest first. Time in which other
 * processes had the processor is not the page's.
 */
async function tasks(act) {
  const events = [];
  const got = (e) => events.push(...e.value);
  cdp.on("Tracing.dataCollected", got);
  await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline", "__metadata"] } });
  await act();
  const done = new Promise((r) => cdp.once("Tracing.tracingComplete", r));
  await cdp.send("Tracing.end");
  await done;
  cdp.off("Tracing.dataCollected", got);
  const of = (name) => {
    const threads = new Set(events.filter((e) => e.name === "thread_name" && e.args?.name?.startsWith(name)).map((e) => `${e.pid}.${e.tid}`));
    return events.filter((e) => e.name === "RunTask" && e.tdur && threads.has(`${e.pid}.${e.tid}`)).map((e) => e.tdur / 1000).sort((a, b) => b - a);
  };
  return Object.assign(of("CrRendererMain"), { worker: of("DedicatedWorker").reduce((n, d) => n + d, 0) });
}

const heap = async () => {
  await cdp.send("HeapProfiler.collectGarbage");
  return (await cdp.send("Runtime.getHeapUsage"));
};
const megabytes = (n) => (n / 2 ** 20).toFixed(0);
const rows = [];
/** Of the goals page/*, by their names. */
const goals = {};
const note = (what, limit, figure) => { rows.push([what, limit, figure]); console.log(`${what}: ${figure} (limit ${limit})`); };
const longest = (list) => list.slice(0, 3).map((d) => `${d.toFixed(0)} ms`).join(", ");

let firstMS = 0;
let points = 0;
const loading = await tasks(async () => {
  await page.goto(`${server.url}/query?expr=vector(1)&${QUERY ? "range=6m&step=1s" : `range=1h&step=${STEP}s`}`);
  await page.locator(".cm-content").waitFor();
  await page.locator(".plot canvas").first().waitFor();
  await page.waitForTimeout(1000);
});
note("longest tasks while the page itself is loaded, with one series", "-", longest(loading));
// Typing is the editor's work, which is done before the query is sent.
await page.locator(".cm-content").click();
await page.keyboard.press("ControlOrMeta+a");
await page.keyboard.insertText(QUERY ?? "many");
await page.waitForTimeout(500);
const opening = await tasks(async () => {
  const began = Date.now();
  await page.keyboard.press("ControlOrMeta+Enter");
  await until("200 lines", () => page.evaluate(() => document.querySelector(".plot")?.plot?.columns.values.length === 200), 120_000);
  firstMS = Date.now() - began;
  points = await page.evaluate(() => document.querySelector(".plot").plot.columns.times.length);
});
note("first lines after the query is sent, of which the test's server takes most for its response", "-", `${(firstMS / 1000).toFixed(1)} s`);
note("processor time of the worker that reads the response", "-", `${opening.worker.toFixed(0)} ms`);
note("longest tasks of the main thread while the response arrives and the first 200 lines are drawn", "100 ms", longest(opening));

const drawing = await tasks(async () => {
  await page.locator("[data-omitted]").getByRole("button").click();
  await until("a picture", () => page.evaluate((n) => document.querySelector(".plot")?.plot?.crowd?.lines === n, COUNT), 120_000);
});
note(`longest tasks while all ${COUNT} are drawn`, "100 ms", longest(drawing));
goals["task-ms"] = Math.max(drawing[0] ?? 0, opening[0] ?? 0);

/** Moves the pointer over a box for some seconds, one move after the other. */
async function hover(selector, seconds) {
  const box = await page.locator(selector).boundingBox();
  const bottom = Math.min(box.height, 900 - box.y);
  let [frames, moves, ms] = [0, 0, 0];
  const list = await tasks(async () => {
    const before = await page.evaluate(() => window.frames_);
    const began = Date.now();
    for (; Date.now() - began < seconds * 1000; moves++) {
      await cdp.send("Input.dispatchMouseEvent", { type: "mouseMoved", x: box.x + 40 + ((moves * 7) % (box.width - 80)), y: box.y + 10 + ((moves * 3) % (bottom - 20)) });
    }
    ms = Date.now() - began;
    frames = (await page.evaluate(() => window.frames_)) - before;
  });
  return { list, frames, moves, ms, busy: list.reduce((n, d) => n + d, 0) };
}

const countFrames = () => page.evaluate(() => {
  window.frames_ = 0;
  const tick = () => { window.frames_++; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
});

await countFrames();
const over = await hover(".u-over", 4);
note("processor time of the main thread for a frame while the pointer moves over all of them", "33 ms", `${(over.busy / over.frames).toFixed(1)} ms (${(over.frames / (over.ms / 1000)).toFixed(0)} frames a second next to the other work)`);
note("longest tasks while the pointer moves", "100 ms", longest(over.list));
goals["hover-frame-ms"] = over.busy / over.frames;
goals["hover-frames-per-second"] = over.frames / (over.ms / 1000);

const scrolling = await tasks(async () => {
  for (let i = 0; i <= 20; i++) await page.locator(".legend-scroll").evaluate((e, share) => { e.scrollTop = e.scrollHeight * share; }, i / 20);
  await page.locator(".legend thead button", { hasText: "Max" }).click();
  await page.getByLabel("Filter the series").fill("shop-1");
  await page.waitForTimeout(500);
});
note("longest tasks while the legend is scrolled, sorted and filtered", "100 ms", longest(scrolling));

const { usedSize, backingStorageSize = 0, embedderHeapUsedSize = 0 } = await heap();
note("heap after it: objects, and buffers in addition", "400 MB", `${megabytes(usedSize + embedderHeapUsedSize)} MB and ${megabytes(backingStorageSize)} MB`);

goals["heap-mib"] = (usedSize + embedderHeapUsedSize + backingStorageSize) / 2 ** 20;

await page.route("**/querier.v1.QuerierService/*", (r) => {
  const method = new URL(r.request().url()).pathname.split("/").pop();
  const types = { profileTypes: [{ ID: "process_cpu:cpu:nanoseconds:cpu:nanoseconds", name: "process_cpu", sampleType: "cpu", sampleUnit: "nanoseconds" }] };
  const body = method === "ProfileTypes" ? types : method === "SelectMergeStacktraces" ? { flamegraph: flameOf(BOXES) } : {};
  return r.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
});
await page.setViewportSize({ width: 1440, height: 900 });
await page.goto(`${base}/profiles?over=lines`);
await until("a flame graph", () => page.evaluate((n) => document.querySelector(".flames canvas")?.flame?.levels.reduce((sum, l) => sum + l.length, 0) === n, BOXES), 60_000);
await page.locator(".flames canvas").evaluate((e) => e.scrollIntoView({ block: "start" }));
await countFrames();
const slow = await hover(".flames canvas", 3);
await cdp.send("Emulation.setCPUThrottlingRate", { rate: 1 });
const fast = await hover(".flames canvas", 3);
note(`processor time of the main thread for a move of the pointer over ${BOXES} boxes of a flame graph`, "4 ms", `${(fast.busy / fast.moves).toFixed(1)} ms, throttled ${(slow.busy / slow.moves).toFixed(1)} ms`);
goals["flame-hover-ms"] = fast.busy / fast.moves;

await browser.close();
server.close();

const file = process.argv[3] ?? "";
if (file.endsWith(".json")) writeFileSync(file, `${JSON.stringify(goals)}\n`);
else if (file !== "") {
  writeFileSync(file, `# The page with very many series, and with large flame graphs

${COUNT} series of ${points} points each over \`query_range\` as ${json ? "JSON" : "columns"}, ${SLOWER} times throttled, without a GPU, on ${cpus().length} cores (${cpus()[0].model.trim()}) that
other work shared. Measured by \`node e2e/perf.mjs URL FILE\` in \`ui/\`, with Chromium's own trace. The throttle slows the main
thread; the worker runs at full speed.

| what | limit | figure |
|---|---|---|
${rows.map((r) => `| ${r.join(" | ")} |`).join("\n")}

How: a worker scans the response while it arrives and gives the page arrays of values, 256 series at a time. The 200 series
with the largest last values are drawn first. All of them, above 500, are one picture: for each pixel how many lines pass it,
computed in slices of 12 ms; where each line lies at each step is kept, step by step, so that the nearest one is found among
${COUNT} numbers in a row. Legend and table have the rows in sight only.
`);
}
