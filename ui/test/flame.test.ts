import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeFlame, matchedTotal, nameTest, nodeAt, packageOf, pathTo, shortName, topFunctions } from "../src/lib/flame.ts";

// total 10: main 8 (self 1) calls work 4 and then again, behind a gap of 1, main 2 (recursion) which calls work 2; idle 2.
const WIRE = {
  names: ["total", "main", "work", "idle"],
  levels: [
    { values: ["0", "10", "0", "0"] },
    { values: ["0", "8", "2", "1", "0", "2", "2", "3"] },
    { values: ["0", "4", "4", "2", "1", "2", "0", "1"] },
    { values: [5, 2, 2, 2] },
  ],
  total: "10", maxSelf: "4",
};

test("levels become places", () => {
  const f = decodeFlame(WIRE);
  assert.deepEqual(f.levels[2], [{ start: 0, total: 4, self: 4, name: 2, level: 2 }, { start: 5, total: 2, self: 0, name: 1, level: 2 }]);
  assert.equal(f.levels[3]![0]!.start, 5);
  assert.deepEqual(decodeFlame(undefined), { names: [], levels: [], total: 0 });
});

test("a place finds its node, and a gap finds none", () => {
  const f = decodeFlame(WIRE);
  assert.equal(f.names[nodeAt(f, 1, 8)!.name], "idle");
  assert.equal(nodeAt(f, 2, 4), null);
  assert.equal(nodeAt(f, 9, 0), null);
  assert.deepEqual(pathTo(f, f.levels[3]![0]!).map((n) => f.names[n.name]), ["total", "main", "main", "work"]);
});

test("recursion counts once in a function's total", () => {
  const costs = new Map(topFunctions(decodeFlame(WIRE)).map((c) => [c.name, c]));
  assert.deepEqual(costs.get("main"), { name: "main", self: 2, total: 8 });
  assert.deepEqual(costs.get("work"), { name: "work", self: 6, total: 6 });
  assert.equal(costs.has("total"), false);
});

test("nested matches count once", () => {
  const f = decodeFlame(WIRE);
  const matched = (text: string) => matchedTotal(f, (n) => nameTest(text)!(f.names[n]!));
  assert.equal(matched("main"), 8);
  assert.equal(matched("WORK"), 6);
  assert.equal(matched("/^(main|idle)$/"), 10);
  assert.equal(nameTest("/(/"), null);
  assert.equal(nameTest(" "), null);
});

test("names are shortened to what distinguishes them", () => {
  assert.equal(shortName("github.com/a/b/tsdb.(*Head).Append"), "tsdb.(*Head).Append");
  assert.equal(shortName("slices.SortFunc[go.shape.[]github.com/a/b.T]"), "slices.SortFunc[go.shape.[]github.com/a/b.T]");
  assert.equal(packageOf("github.com/a/b/tsdb.(*Head).Append"), "github.com/a/b/tsdb");
  assert.equal(packageOf("main"), "main");
});
