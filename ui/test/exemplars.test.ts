import assert from "node:assert/strict";
import { test } from "node:test";
import { exemplarDots, EXEMPLARS_MAX, isTraceTemplate, spanOf, traceLink } from "../src/lib/exemplars.ts";

test("exemplars take the colour of the line that their series went into", () => {
  const data = [
    { seriesLabels: { __name__: "h_bucket", le: "1", path: "/b" }, exemplars: [{ labels: { trace_id: "t" }, value: "0.5", timestamp: 20.5 }] },
    { seriesLabels: { __name__: "h_bucket", le: "1", path: "/c" }, exemplars: [{ labels: {}, value: "NaN", timestamp: 1 }, { labels: {}, value: "2", timestamp: 10 }] },
  ];
  const dots = exemplarDots(data, [{ path: "/a" }, { __name__: "x", path: "/b" }]);
  assert.deepEqual(dots.map((d) => [d.series, d.timeMS, d.value]), [[0, 10_000, 2], [1, 20_500, 0.5]]);
  assert.equal(dots[1]!.labels["trace_id"], "t");
});

test("of too many exemplars the newest stay", () => {
  const exemplars = Array.from({ length: EXEMPLARS_MAX + 5 }, (_, i) => ({ labels: {}, value: "1", timestamp: i }));
  const dots = exemplarDots([{ seriesLabels: {}, exemplars }], []);
  assert.equal(dots.length, EXEMPLARS_MAX);
  assert.equal(dots[0]!.timeMS, 5000);
});

test("a template gives a link, only to a web page and only where the labels are there", () => {
  const labels = { trace_id: "ab/c d", le: "1" };
  assert.equal(traceLink("https://t.example/trace/{trace_id}?x={le}", labels), "https://t.example/trace/ab%2Fc%20d?x=1");
  assert.equal(traceLink("http://t:3200/{trace_id}", { traceID: "f" }), "http://t:3200/f");
  assert.equal(traceLink("https://t/{span_id}", labels), null);
  for (const bad of ["javascript:alert({trace_id})", "data:text/html,{trace_id}", "//t/{trace_id}", "https://{trace_id}", "https://t/", "", "https:// t/{trace_id}"]) {
    assert.equal(traceLink(bad, labels), null, bad);
    assert.equal(isTraceTemplate(bad), false, bad);
  }
});

test("a span is sixteen hexadecimal digits under one of the usual names", () => {
  assert.equal(spanOf({ spanID: "00F067AA0BA902B7" }), "00f067aa0ba902b7");
  assert.equal(spanOf({ span_id: "x" }), "");
  assert.equal(spanOf({}), "");
});
