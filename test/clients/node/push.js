// Pushes profiles of itself with Grafana's Node.js SDK to the server whose address is the argument.
"use strict";

const Pyroscope = require("@pyroscope/nodejs");

Pyroscope.init({
  serverAddress: process.argv[2],
  appName: "node.client",
  tags: { region: "eu" },
  flushIntervalMs: 1000,
  heap: { samplingIntervalBytes: 1024, stackDepth: 64 },
  wall: { collectCpuTime: true },
});
Pyroscope.start();

const live = [];

function hotNode() {
  const end = Date.now() + 50;
  let n = 0;
  while (Date.now() < end) n++;
  live.push(new Array(10000).fill(n));
}

const timer = setInterval(hotNode, 60);
setTimeout(async () => {
  clearInterval(timer);
  await Pyroscope.stop();
  process.exit(0);
}, 4000);
