// Lists the packages whose code is in the bundle, with their licences' full text, as those licences require.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

interface Manifest { name: string; version: string; license?: string }

/** What may be bundled. Anything else fails the build. */
const PERMISSIVE = new Set(["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "BlueOak-1.0.0", "0BSD"]);

/** The folder of the package a module belongs to, or null for our own modules. */
function packageFolder(id: string): string | null {
  const m = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replace(/\\/g, "/").replace(/^\0/, ""));
  return m?.[1] ?? null;
}

function licenceText(folder: string): string {
  const name = readdirSync(folder).filter((f) => /^(licen[sc]e|notice)(\.|$)/i.test(f)).sort();
  return name.map((f) => readFileSync(join(folder, f), "utf8").trim()).join("\n\n");
}

function describe(folder: string): string {
  const m = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Manifest;
  if (!PERMISSIVE.has(m.license ?? "")) throw new Error(`${m.name}: licence ${m.license} is not among the permissive ones`);
  const rule = "-".repeat(100);
  const text = licenceText(folder);
  return `${rule}\n${m.name} ${m.version} (${m.license})\n${rule}\n\n${text === "" ? `See the ${m.license} licence; the package ships no copy.` : text}\n`;
}

export function licences(fileName: string): Plugin {
  return {
    name: "licences",
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        for (const id of chunk.moduleIds) {
          const folder = packageFolder(id);
          if (folder !== null && existsSync(join(folder, "package.json"))) folders.add(folder);
        }
      }
      const parts = [...folders].map(describe).sort();
      const head = "Packages bundled into this page, with their licences. ferula itself is under Apache-2.0.\n";
      this.emitFile({ type: "asset", fileName, source: [head, ...parts].join("\n") });
    },
  };
}
