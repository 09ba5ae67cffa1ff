// tokens.css promises contrast; here it is measured, as WCAG 2 defines it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const css = readFileSync("src/style/tokens.css", "utf8");

function tokens(theme: string): Map<string, string> {
  const block = css.slice(css.indexOf(`[data-theme="${theme}"]`)).split("}")[0]!;
  return new Map([...block.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map((m) => [m[1]!, m[2]!]));
}

function luminance(hex: string): number {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a: string, b: string): number {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

const TEXT: readonly (readonly [string, string])[] = [
  ...["bg", "surface", "sunken", "hover", "accent-soft", "bad-soft", "warn-soft", "info-soft"].map((b) => ["text", b] as const),
  ...["bg", "surface", "sunken", "hover"].map((b) => ["muted", b] as const),
  ...["accent", "tok-name", "tok-function", "tok-string", "tok-number", "tok-keyword", "bad"].map((t) => [t, "surface"] as const),
  ["accent", "accent-soft"], ["on-accent", "accent"], ["on-accent", "accent-hover"],
  ["ok", "ok-soft"], ["bad", "bad-soft"], ["warn", "warn-soft"], ["info", "info-soft"],
];

for (const theme of ["light", "dark"]) {
  const t = tokens(theme);
  test(`text can be read in the ${theme} theme`, () => {
    for (const [fore, back] of TEXT) {
      const c = contrast(t.get(fore)!, t.get(back)!);
      assert.ok(c >= 4.5, `${fore} on ${back}: ${c.toFixed(2)}`);
    }
  });
  test(`lines stand out in the ${theme} theme`, () => {
    for (let i = 0; i < 14; i++) {
      const c = contrast(t.get(`s${i}`)!, t.get("surface")!);
      assert.ok(c >= 3, `s${i}: ${c.toFixed(2)}`);
    }
    assert.ok(contrast(t.get("focus")!, t.get("surface")!) >= 3, "focus ring");
  });
}
