import assert from "node:assert/strict";
import { test } from "node:test";
import { applyNotice } from "../src/lib/notices.ts";
import { changesOf, ruleText } from "../src/lib/relabel.ts";

test("rules read as in the configuration, defaults left out", () => {
  assert.equal(ruleText({ source_labels: ["a", "b"], separator: ";", regex: "(.*)", target_label: "c", replacement: "$1", action: "replace" }), "action: replace\nsource_labels: [a, b]\ntarget_label: c");
  assert.equal(ruleText({ source_labels: ["a", "b"], separator: "/", regex: "x.*", modulus: 4, target_label: "c", replacement: "", action: "hashmod" }),
    'action: hashmod\nsource_labels: [a, b]\nseparator: "/"\nregex: x.*\nmodulus: 4\ntarget_label: c\nreplacement: ""');
});

test("each step states what it changed, none after the target was dropped", () => {
  const rule = { action: "replace" };
  const steps = [{ rule, output: { a: "1", b: "3" }, keep: true }, { rule, output: { b: "3", c: "4" }, keep: true }, { rule, output: { b: "3", c: "4" }, keep: true }, { rule, output: {}, keep: false }];
  assert.deepEqual(changesOf({ a: "1", b: "2" }, steps), [
    [{ name: "b", before: "2", after: "3" }],
    [{ name: "a", before: "1", after: null }, { name: "c", before: null, after: "4" }],
    [], [],
  ]);
});

test("notifications begin, are renewed and end; noise changes nothing", () => {
  const event = (text: string, active: boolean, date = "1") => JSON.stringify({ text, active, date });
  let list = applyNotice([], event("a", true));
  list = applyNotice(list, event("b", true));
  list = applyNotice(list, event("a", true, "2"));
  assert.deepEqual(list.map((n) => [n.text, n.date]), [["b", "1"], ["a", "2"]]);
  for (const noise of ["", "null", "[]", "{", '{"text":1,"active":true}']) assert.equal(applyNotice(list, noise), list);
  assert.deepEqual(applyNotice(list, event("b", false)).map((n) => n.text), ["a"]);
  for (let i = 0; i < 20; i++) list = applyNotice(list, event(`n${i}`, true));
  assert.equal(list.length, 5);
});
