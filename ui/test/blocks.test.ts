import assert from "node:assert/strict";
import { test } from "node:test";
import { groupBlocks, tracksOf, resolutionText, type BlockMeta } from "../src/lib/blocks.ts";

const block = (ulid: string, minTime: number, maxTime: number, more: Partial<BlockMeta> = {}): BlockMeta => ({ ulid, minTime, maxTime, stats: { numSamples: 10, numSeries: 3 }, ...more });
const of = (labels: Record<string, string>, resolution = 0): Pick<BlockMeta, "thanos"> => ({ thanos: { labels, downsample: { resolution }, source: "sidecar" } });

test("blocks are grouped by their labels in any order of names, the newest first", () => {
  const groups = groupBlocks([block("A", 0, 10, of({ a: "1", b: "2" })), block("B", 10, 20, of({ b: "2", a: "1" })), block("C", 0, 5, of({ a: "0" })), block("D", 0, 7)], "");
  assert.deepEqual(groups.map((g) => [g.name, g.blocks.map((b) => b.ulid), g.samples, g.series, g.minTime, g.maxTime]),
    [["{a=\"0\"}", ["C"], 10, 3, 0, 5], ["{a=\"1\", b=\"2\"}", ["B", "A"], 20, 3, 0, 20], ["{}", ["D"], 10, 3, 0, 7]]);
});

test("a search looks at ULID, labels, resolution and level", () => {
  const all = [block("01AB", 0, 1, of({ cluster: "eu" }, 300_000)), block("01CD", 0, 1, { ...of({ cluster: "us" }), compaction: { level: 3 } })];
  const found = (text: string) => groupBlocks(all, text).flatMap((g) => g.blocks.map((b) => b.ulid));
  assert.deepEqual([found("01ab"), found('cluster="us"'), found("5 min"), found("level:3 sidecar"), found("none")], [["01AB"], ["01CD"], ["01AB"], ["01CD"], []]);
});

test("blocks that overlap, or differ in level or resolution, are in tracks of their own", () => {
  const tracks = tracksOf([block("C", 20, 30), block("A", 0, 10), block("B", 10, 20), block("X", 5, 15), block("L", 0, 30, { compaction: { level: 2 } }), block("D", 0, 30, of({}, 3_600_000))]);
  assert.deepEqual(tracks.map((l) => [l.resolution, l.level, l.blocks.map((b) => b.ulid)]), [[0, 1, ["A", "B", "C"]], [0, 1, ["X"]], [0, 2, ["L"]], [3_600_000, 1, ["D"]]]);
  assert.deepEqual([0, 300_000, 3_600_000].map(resolutionText), ["raw", "5 min", "1 h"]);
  assert.deepEqual(tracksOf([]), []);
});
