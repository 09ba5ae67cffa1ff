// What the page's client makes of failures: which ones mean that the server is away, and how often it sends anything.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { APIError, Server, UnavailableError } from "../src/api/client.ts";
import { probeDelayMS, REFRESH_PAUSE_MS, RefreshGate } from "../src/lib/backoff.ts";

type Responder = (url: string) => Response | Promise<Response>;
let sent: string[] = [];
const realFetch = globalThis.fetch;

function serve(respond: Responder): void {
  globalThis.fetch = ((url: string | URL | Request) => {
    sent.push(String(url));
    return Promise.resolve().then(() => respond(String(url)));
  }) as typeof fetch;
}

/** Runs what is due in `ms` of mocked time, step by step, so that promises in between settle. */
async function pass(ms: number): Promise<void> {
  for (let t = 0; t < ms; t += 100) {
    mock.timers.tick(100);
    for (let i = 0; i < 20; i++) await Promise.resolve();
    await new Promise((r) => setImmediate(r));
  }
}

beforeEach(() => { sent = []; mock.timers.enable({ apis: ["setTimeout", "Date"] }); });
afterEach(() => { mock.timers.reset(); globalThis.fetch = realFetch; });

const ready = (url: string): boolean => url.includes("/-/ready");
const typed = (status: number, errorType: string) => new Response(JSON.stringify({ status: "error", errorType, error: "no" }), { status });

for (const [status, errorType] of [[502, "unavailable"], [503, "timeout"], [504, "timeout"]] as const) {
  test(`Server.get: a typed ${status} is the server's own error and starts no probe`, async () => {
    serve((url) => (ready(url) ? new Response("ok") : typed(status, errorType)));
    const server = new Server("/");
    await assert.rejects(server.get("query", {}, new AbortController().signal), (e) => e instanceof APIError && e.type === errorType && e.status === status);
    await pass(60_000);
    assert.equal(sent.length, 1);
    assert.equal(server.epoch, 0);
  });
}

test("Server.call: what a partial response lacks is a warning", async () => {
  serve(() => new Response("{}", { headers: { "Ferula-Partial-Response": "true", "Ferula-Warning": "block 01: corrupt" } }));
  const server = new Server("/");
  assert.deepEqual((await server.call("querier.v1.QuerierService/SelectSeries", {}, new AbortController().signal)).warnings, ["block 01: corrupt"]);
  serve(() => new Response("{}"));
  assert.deepEqual((await server.call("querier.v1.QuerierService/SelectSeries", {}, new AbortController().signal)).warnings, []);
});

test("Server.call: deadline_exceeded of Connect is an error of the query", async () => {
  serve((url) => (ready(url) ? new Response("ok") : new Response(JSON.stringify({ code: "deadline_exceeded", message: "late" }), { status: 504 })));
  const server = new Server("/");
  await assert.rejects(server.call("querier.v1.QuerierService/SelectSeries", {}, new AbortController().signal), (e) => e instanceof APIError && e.type === "deadline_exceeded");
  await pass(60_000);
  assert.equal(sent.length, 1);
});

for (const [name, respond] of [
  ["an untyped 504 of a proxy", () => new Response("<html>", { status: 504 })],
  ["an untyped 502 of a proxy", () => new Response("bad gateway", { status: 502 })],
  ["a cut connection", () => { throw new TypeError("network"); }],
] as const) {
  test(`Server: ${name} while /-/ready succeeds is one failed request, and nothing is sent again`, async () => {
    serve((url) => (ready(url) ? new Response("ok") : respond()));
    const server = new Server("/");
    let changes = 0;
    server.subscribe(() => changes++);
    await assert.rejects(server.get("query", {}, new AbortController().signal), UnavailableError);
    await pass(120_000);
    assert.deepEqual(sent.filter(ready).length, 1, "one look at readiness");
    assert.equal(server.epoch, 0, "pages must not send their requests again");
    assert.equal(server.health.state, "ok");
    assert.equal(changes, 0);
  });
}

for (const method of ["get", "call"] as const) {
  test(`Server.${method}: a response that is cut short pauses automatic refresh, and states it`, async () => {
    serve(() => new Response('{"status":"success","data":{"resultType":"vec', { headers: { "Content-Type": "application/json" } }));
    const server = new Server("/");
    await assert.rejects(server[method]("query", {}, new AbortController().signal), (e) => e instanceof APIError && /ended before/.test(e.message));
    assert.equal(server.refreshGate.tick(), false);
  });
}

test("Server: while the server is away probes get rarer, and its return is announced once", async () => {
  let away = true;
  serve(() => { if (away) throw new TypeError("refused"); return new Response("ok"); });
  const server = new Server("/");
  await assert.rejects(server.get("query", {}, new AbortController().signal), UnavailableError);
  await pass(60_000);
  assert.equal(server.health.state, "unreachable");
  const probes = sent.filter(ready).length;
  assert.ok(probes >= 3 && probes <= 6, `${probes} probes in the first minute`);
  await pass(60_000);
  assert.ok(sent.filter(ready).length - probes <= 3, "the delays do not grow");
  away = false;
  await pass(40_000);
  assert.equal(server.health.state, "ok");
  assert.equal(server.epoch, 1);
  const total = sent.length;
  await pass(120_000);
  assert.equal(sent.length, total, "probing goes on after the return");
});

test("Server: an aborted request is no failure", async () => {
  const stop = new AbortController();
  serve(() => { stop.abort(); throw new DOMException("stopped", "AbortError"); });
  const server = new Server("/");
  await assert.rejects(server.get("query", {}, stop.signal), (e) => e instanceof DOMException);
  await pass(10_000);
  assert.equal(sent.length, 1);
  assert.ok(server.refreshGate.tick(), "an abort must not pause refresh");
});

test("RefreshGate: a tick waits for the running requests", () => {
  const gate = new RefreshGate(() => 0);
  gate.begin();
  gate.begin();
  assert.equal(gate.tick(), false);
  gate.end(false);
  assert.equal(gate.tick(), false);
  gate.end(false);
  assert.equal(gate.tick(), true);
});

test("RefreshGate: failed rounds make pauses that double, and a good round ends them", () => {
  let now = 0;
  const gate = new RefreshGate(() => now);
  const round = (...failures: boolean[]) => { failures.forEach(() => gate.begin()); failures.forEach((f) => gate.end(f)); };
  round(true, false, true);
  assert.equal(gate.tick(), false);
  now += REFRESH_PAUSE_MS;
  assert.equal(gate.tick(), true);
  round(true);
  now += REFRESH_PAUSE_MS;
  assert.equal(gate.tick(), false, "the second pause is longer");
  now += REFRESH_PAUSE_MS;
  assert.equal(gate.tick(), true);
  round(false);
  assert.equal(gate.tick(), true);
  round(true);
  now += REFRESH_PAUSE_MS;
  assert.equal(gate.tick(), true, "pauses start from the shortest after a good round");
});

test("RefreshGate: a server that fails every request gets at most six rounds in the first five minutes", () => {
  let now = 0;
  const gate = new RefreshGate(() => now);
  let rounds = 0;
  for (; now < 300_000; now += 1000) if (gate.tick()) { rounds++; gate.begin(); gate.end(true); }
  assert.ok(rounds <= 6, `${rounds} rounds`);
});

test("probeDelayMS: delays grow to half a minute and are spread", () => {
  assert.ok(probeDelayMS(0, () => 0.5) < 2000);
  assert.equal(probeDelayMS(99, () => 0.5), 30_000);
  assert.ok(probeDelayMS(3, () => 0) < probeDelayMS(3, () => 1));
});
