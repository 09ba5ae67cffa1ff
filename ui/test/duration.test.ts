import assert from "node:assert/strict";
import { test } from "node:test";
import { formatAgo, formatDuration, formatElapsed, formatUptime, parseDuration, spellDuration } from "../src/lib/duration.ts";

const HOUR = 3_600_000;

test("durations are read as Prometheus reads them", () => {
  assert.equal(parseDuration("1h30m"), 1.5 * HOUR);
  assert.equal(parseDuration("90m"), 1.5 * HOUR);
  assert.equal(parseDuration("1d"), 24 * HOUR);
  assert.equal(parseDuration("2w"), 14 * 24 * HOUR);
  assert.equal(parseDuration("1y"), 365 * 24 * HOUR);
  assert.equal(parseDuration("500ms"), 500);
  assert.equal(parseDuration("1m500ms"), 60_500);
  assert.equal(parseDuration(" 15s "), 15_000);
});

test("a bare number is seconds", () => {
  assert.equal(parseDuration("15"), 15_000);
  assert.equal(parseDuration("0.25"), 250);
});

test("what is no duration is refused", () => {
  for (const text of ["", "h", "-1m", "30m1h", "1h1h", "1.5h", "1 h", "5x", "now"]) {
    assert.equal(parseDuration(text), null, JSON.stringify(text));
  }
});

test("durations survive being written and read", () => {
  for (const ms of [1, 999, 1000, 15_000, 60_000, 90_000, HOUR, 25 * HOUR, 30 * 24 * HOUR, 400 * 24 * HOUR]) {
    assert.equal(parseDuration(formatDuration(ms)), ms);
  }
  assert.equal(formatDuration(1.5 * HOUR), "1h30m");
  assert.equal(formatDuration(30 * 24 * HOUR), "30d");
  assert.equal(formatDuration(0), "0s");
});

test("durations are written for people", () => {
  assert.equal(spellDuration(HOUR), "1 hour");
  assert.equal(spellDuration(15 * 60_000), "15 minutes");
  assert.equal(spellDuration(2 * 24 * HOUR), "2 days");
  assert.equal(spellDuration(1.5 * HOUR), "90 minutes");
  assert.equal(spellDuration(500), "500ms");
});

test("measured times keep two or three digits", () => {
  assert.equal(formatElapsed(0.82), "0.8 ms");
  assert.equal(formatElapsed(132.4), "132 ms");
  assert.equal(formatElapsed(2449), "2.4 s");
  assert.equal(formatElapsed(180_000), "3m");
});

test("ages and uptimes show their largest units", () => {
  assert.equal(formatAgo(400), "now");
  assert.equal(formatAgo(4900), "4s ago");
  assert.equal(formatAgo(130_000), "2m ago");
  assert.equal(formatAgo(26 * HOUR), "1d ago");
  assert.equal(formatUptime(1_465_300), "24m 25s");
  assert.equal(formatUptime(76.5 * HOUR), "3d 4h");
});
