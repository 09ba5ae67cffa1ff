import assert from "node:assert/strict";
import { test } from "node:test";
import { exemplarDots, EXEMPLARS_MAX } from "../src/lib/exemplars.ts";

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
