// Calls every function of the clients of Perses' Prometheus and Pyroscope plugins, and prints a line for each:
// "pass NAME" or "fail NAME: reason". Where there is a second server, the results must be equal.
//
//	node clients.js FERULA PROMETHEUS TIME
//
// Both have the samples of judged_total at TIME, in seconds.
'use strict';

// The clients use only fetch and fetchJson of @perses-dev/core, whose bundle needs a browser.
const Module = require('module');
const load = Module._load;
const core = {
  fetch: async (...args) => {
    const response = await globalThis.fetch(...args);
    if (!response.ok) throw new Error(`${args[0]}: status ${response.status}: ${await response.clone().text()}`);
    return response;
  },
  fetchJson: async (...args) => (await core.fetch(...args)).json(),
};
Module._load = function (name, ...rest) {
  return name === '@perses-dev/core' ? core : load.call(this, name, ...rest);
};
const prometheus = require('@perses-dev/prometheus-plugin/lib/cjs/model/prometheus-client.js');
const pyroscope = require('@perses-dev/pyroscope-plugin/lib/cjs/model/pyroscope-client.js');

const [ferula, peer, at] = process.argv.slice(2);
const start = Number(at) - 60, end = Number(at) + 30;

const json = (datasourceUrl) => ({ datasourceUrl, headers: { 'Content-Type': 'application/json' } });

async function judge(name, call, servers) {
  try {
    const results = [];
    for (const datasourceUrl of servers) {
      const { rawResponse, ...result } = await call({ datasourceUrl });
      results.push(JSON.stringify(result));
    }
    if (new Set(results).size > 1) throw new Error(`ferula: ${results[0]}, Prometheus: ${results[1]}`);
    console.log('pass', name, results[0].slice(0, 120));
  } catch (e) {
    console.log('fail', `${name}: ${e.message.replaceAll('\n', ' ')}`);
  }
}

const query = 'sum by (job) (count_over_time(judged_total[1m]))';
const calls = {
  instantQuery: [{ query, time: end }, { query: 'judged_total', time: String(end) }],
  rangeQuery: [{ query, start, end, step: 15 }, { query: 'judged_total > 3', start, end, step: 30 }],
  labelNames: [{ 'match[]': ['judged_total'], start, end }, { start, end }],
  labelValues: [{ labelName: 'job', start, end }, { labelName: 'path', 'match[]': ['judged_total'] }, { labelName: '' }],
  series: [{ 'match[]': ['judged_total'], start, end }],
  metricMetadata: [{ metric: 'judged_total' }],
  parseQuery: [{ query }, { query: 'topk(3, judged_total offset 5m) / 2' }],
};

(async () => {
  for (let i = 0; i < 300; i++) {
    const counts = await Promise.all([ferula, peer].map(async (datasourceUrl) =>
      (await prometheus.instantQuery(calls.instantQuery[1], { datasourceUrl })).data.result.length));
    const types = await pyroscope.searchProfileTypes({}, json(ferula), { start: Date.now() - 3600000, end: Date.now() });
    if (counts.every((n) => n === 3) && types.profileTypes?.length) break;
    await new Promise((done) => setTimeout(done, 100));
  }
  for (const [name, all] of Object.entries(calls)) {
    for (const [i, params] of all.entries()) {
      await judge(`prometheus.${name} ${i + 1}`, (options) => prometheus[name](params, options), [ferula, peer]);
    }
  }
  await judge('prometheus.healthCheck', async (o) => ({ healthy: await prometheus.healthCheck(o)() }), [ferula, peer]);
  await judge('prometheus.instantQuery of an invalid query', async (o) => {
    try {
      return await prometheus.instantQuery({ query: '1 +', time: end }, o);
    } catch (e) {
      return { error: e.message.replace(o.datasourceUrl, '') };
    }
  }, [ferula, peer]);
  const range = { start: Date.now() - 3600000, end: Date.now() + 60000 };
  const some = (result, what) => {
    if (!what(result)) throw new Error(`nothing in ${JSON.stringify(result)}`);
    return result;
  };
  let type = '';
  await judge('pyroscope.searchProfileTypes', async (o) => {
    const result = await pyroscope.searchProfileTypes({}, json(o.datasourceUrl), range);
    type = some(result, (r) => r.profileTypes?.length).profileTypes[0].ID;
    return result;
  }, [ferula]);
  await judge('pyroscope.searchServices', async (o) =>
    some(await pyroscope.searchServices({}, json(o.datasourceUrl)), (r) => r.names?.length), [ferula]);
  await judge('pyroscope.searchLabelNames', async (o) =>
    some(await pyroscope.searchLabelNames({}, json(o.datasourceUrl), range), (r) => r.names?.length), [ferula]);
  await judge('pyroscope.searchLabelValues', async (o) =>
    some(await pyroscope.searchLabelValues({}, json(o.datasourceUrl), { name: 'service_name', ...range }),
      (r) => r.names?.length), [ferula]);
  await judge('pyroscope.searchProfiles', async (o) =>
    some(await pyroscope.searchProfiles({ query: `${type}{}`, from: 'now-1h', until: 'now', 'max-nodes': 1024 },
      json(o.datasourceUrl)), (r) => r.flamebearer?.names?.length), [ferula]);
})();
