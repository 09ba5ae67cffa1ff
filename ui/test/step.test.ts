import assert from "node:assert/strict";
import { test } from "node:test";
import { autoStep, grid, gridLength, POINTS_MAX } from "../src/lib/step.ts";

const DAY = 86_400_000;

test("steps are round and give about one point per third pixel", () => {
  assert.equal(autoStep(3_600_000, 1400), 10_000);
  assert.equal(autoStep(300_000, 1400), 1000);
  assert.equal(autoStep(DAY, 1400), 300_000);
  assert.equal(autoStep(30 * DAY, 1400), 7_200_000);
});

test("no range and no width makes a query that Prometheus refuses", () => {
  for (const width of [0, 320, 1400, 10_000]) {
    for (let range = 1000; range < 20 * 365 * DAY; range *= 3) {
      const step = autoStep(range, width);
      assert.ok(step >= 1000 && Number.isInteger(step), `${range} ${width}: ${step}`);
      assert.ok(range / step <= POINTS_MAX, `${range} ${width}`);
    }
  }
});

test("the grid lies on multiples of the step and inside the range", () => {
  const g = grid(1_000_007, 60_000, 15_000);
  assert.deepEqual(g, { start: 945_000, end: 990_000, step: 15_000 });
  assert.equal(gridLength(g), 4);
  for (const end of [1_000_000, 1_000_001, 1_004_999]) assert.equal(grid(end, 60_000, 5000).end % 5000, 0);
});

test("a range shorter than the step is one point", () => {
  const g = grid(1_000_000, 1000, 60_000);
  assert.equal(g.start, g.end);
  assert.equal(gridLength(g), 1);
});
