import assert from "node:assert/strict";
import { test } from "node:test";
import { formatMoment, formatSpan, formatStored, formatTime, parseTime } from "../src/lib/time.ts";

const T = Date.UTC(2026, 0, 31, 14, 5, 9);
const NOW = Date.UTC(2026, 1, 1, 0, 0, 0);

test("times are written without zone letters, milliseconds only where there are some", () => {
  assert.equal(formatTime(T, "utc"), "2026-01-31 14:05:09");
  assert.equal(formatTime(T + 7, "utc"), "2026-01-31 14:05:09.007");
});

test("a wall clock time is read in the chosen zone", () => {
  assert.equal(parseTime("2026-01-31 14:05:09", "utc", NOW), T);
  assert.equal(parseTime("2026-01-31T14:05", "utc", NOW), T - 9000);
  assert.equal(parseTime("2026-01-31", "utc", NOW), Date.UTC(2026, 0, 31));
  assert.equal(parseTime("2026-01-31 14:05:09.5", "utc", NOW), T + 500);
  const local = parseTime("2026-01-31 14:05:09", "local", NOW)!;
  assert.equal(formatTime(local, "local"), "2026-01-31 14:05:09");
});

test("RFC 3339, Unix seconds and milliseconds and words are read too", () => {
  assert.equal(parseTime("2026-01-31T14:05:09Z", "local", NOW), T);
  assert.equal(parseTime("2026-01-31T15:05:09+01:00", "local", NOW), T);
  assert.equal(parseTime(String(T / 1000), "local", NOW), T);
  assert.equal(parseTime(String(T), "local", NOW), T);
  assert.equal(parseTime("now", "local", NOW), NOW);
  assert.equal(parseTime("now-1h", "local", NOW), NOW - 3_600_000);
});

test("days that do not exist and other mistakes are refused", () => {
  for (const text of ["", "2026-02-31", "2026-13-01", "2026-01-01 25:00", "yesterday", "now+1h", "now-x", "14:05"]) {
    assert.equal(parseTime(text, "utc", NOW), null, text);
  }
});

test("spans name the day only where it helps", () => {
  assert.equal(formatSpan(T, T + 3_600_000, "utc", T), "14:05 – 15:05");
  assert.equal(formatSpan(T, T + 3_600_000, "utc", NOW), "2026-01-31 14:05 – 15:05");
  assert.equal(formatSpan(T, T + 86_400_000, "utc", NOW), "2026-01-31 14:05 – 2026-02-01 14:05");
  assert.equal(formatMoment(T, "utc", 1000), "14:05:09");
  assert.equal(formatMoment(T, "utc", 86_400_000), "01-31 14:05:09");
});

test("the range of a store names open bounds, and a store without samples has none", () => {
  const max = Number("9223372036854775807");
  assert.equal(formatStored(T, T + 60_000, "utc"), "2026-01-31 14:05:09 – 2026-01-31 14:06:09");
  assert.equal(formatStored(T, max, "utc"), "2026-01-31 14:05:09 – now");
  assert.equal(formatStored(-max, max, "utc"), "the beginning – now");
  assert.equal(formatStored(max, -max, "utc"), "no samples");
  assert.equal(formatStored(max, max, "utc"), "no samples");
  assert.equal(formatStored(-max, -max, "utc"), "no samples");
});
