import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeFlame, exactly, nameTest, otherShare } from "../src/lib/flame.ts";
import { change, changedFunctions, decodeFlameDiff, type DiffNode } from "../src/lib/flamediff.ts";
import { collapseRecursion, sandwich, toFolded } from "../src/lib/sandwich.ts";

const levels = (...rows: number[][]) => rows.map((values) => ({ values: values.map(String) }));

test("a diff has both sides in one node, each by its own total", () => {
  // left: total 100, a 60 (self 60), b 40; right: total 10, a 2, c 8.
  const d = decodeFlameDiff({ names: ["total", "a", "b", "c"], leftTicks: "100", rightTicks: "10",
    levels: levels([0, 100, 0, 0, 10, 0, 0], [0, 60, 60, 0, 2, 2, 1, 0, 40, 40, 0, 0, 0, 2, 0, 0, 0, 0, 8, 8, 3]) });
  const [a, b, c] = d.levels[1] as DiffNode[];
  assert.equal(d.total, 2);
  assert.ok(Math.abs(a!.total - 0.8) < 1e-9 && Math.abs(b!.start - 0.8) < 1e-9 && Math.abs(c!.start - 1.2) < 1e-9);
  assert.equal(change(b!.left, b!.right, d), -1);
  assert.equal(change(c!.left, c!.right, d), 1);
  assert.deepEqual(changedFunctions(d).map((f) => [f.name, Math.round(f.delta * 100)]), [["c", 80], ["b", -40], ["a", -40]]);
  assert.equal(decodeFlameDiff(undefined).total, 0);
});

// total -> a(60, self 10) -> b(50, self 20) -> a(30 self 30); total -> b(40, self 40)
const FLAME = decodeFlame({ names: ["total", "a", "b"], total: "100", levels: levels([0, 100, 0, 0], [0, 60, 10, 1, 0, 40, 40, 2], [0, 50, 20, 2], [0, 30, 30, 1]) });

test("a sandwich merges all calls, and a recursive one counts once", () => {
  const b = sandwich(FLAME, "b")!;
  assert.equal(b.callees.total, 90);
  assert.deepEqual(b.callees.levels.map((l) => l.map((n) => [n.name, n.total])), [[[2, 90]], [[1, 30]]]);
  assert.deepEqual(b.callers.levels.map((l) => l.map((n) => [n.name, n.total])), [[[2, 90]], [[1, 50]]]);
  assert.equal(sandwich(FLAME, "a")!.callees.total, 60);
  assert.equal(sandwich(FLAME, "none"), null);
});

test("recursion is drawn once, and nothing is lost", () => {
  const f = decodeFlame({ names: ["total", "a", "b"], total: "10", levels: levels([0, 10, 0, 0], [0, 10, 1, 1], [0, 9, 4, 1], [0, 5, 5, 2]) });
  const c = collapseRecursion(f);
  assert.deepEqual(c.levels.map((l) => l.map((n) => [n.name, n.total, n.self])), [[[0, 10, 0]], [[1, 10, 5]], [[2, 5, 5]]]);
});

test("folded stacks add up to the whole", () => {
  assert.deepEqual(toFolded(FLAME).trim().split("\n").sort(), ["a 10", "a;b 20", "a;b;a 30", "b 40"]);
  assert.equal(otherShare(decodeFlame({ names: ["total", "other"], total: "10", levels: levels([0, 10, 0, 0], [0, 4, 4, 1]) })), 0.4);
});

test("a picked function is found by its whole name", () => {
  const t = nameTest(exactly("main.(*T[...]).run"))!;
  assert.equal(t("main.(*T[...]).run"), true);
  assert.equal(t("main.(*T[...]).runAll"), false);
});
