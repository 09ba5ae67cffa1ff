// How the page is built into ../internal/httpapi/ui/dist, which is committed. The build is deterministic: CI repeats it and
// compares the bytes, so nothing here may depend on time, on paths or on the order in which files are found.
import { defineConfig } from "vite";
import { licences } from "./build/licences.ts";

export default defineConfig({
  base: "./", // the page works under any path prefix
  build: {
    outDir: "../internal/httpapi/ui/dist",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    reportCompressedSize: true,
    chunkSizeWarningLimit: 1000,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: {
        // The editor is most of the code and changes only with its packages: alone, it stays in browsers' caches.
        codeSplitting: { groups: [{ name: "editor", test: /node_modules[\\/](@codemirror|@lezer|@prometheus-io|@marijn|style-mod|w3c-keyname|crelt|lru-cache)/ }] },
      },
    },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [licences("LICENSES.txt")],
  server: {
    host: "127.0.0.1",
    proxy: {
      "/api": process.env["FERULA_URL"] ?? "http://127.0.0.1:9490",
      "/-": process.env["FERULA_URL"] ?? "http://127.0.0.1:9490",
      "/querier.v1.QuerierService": process.env["FERULA_URL"] ?? "http://127.0.0.1:9490",
    },
  },
});
