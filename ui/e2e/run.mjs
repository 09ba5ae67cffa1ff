// The page in a real browser against a real server:  npm run e2e -- http://127.0.0.1:9490
//
//   CHROMIUM     the browser, /usr/bin/chromium by default
//   SCREENSHOTS  a folder to leave pictures in
//   ONLY         a part of the names of the checks to run
//
// Each check opens a tab of its own. In addition to what it looks at, it fails on any error in the console and on any request to
// another host.
import { launch, openTab, until } from "./browser.mjs";
import * as crowd from "./crowd.mjs";
import * as failures from "./failures.mjs";
import * as hold from "./hold.mjs";
import * as pages from "./pages.mjs";
import * as parity from "./parity.mjs";
import * as pictures from "./pictures.mjs";
import * as profiles from "./profiles.mjs";
import * as profileviews from "./profileviews.mjs";
import * as query from "./query.mjs";
import * as views from "./views.mjs";

const base = (process.argv[2] ?? "http://127.0.0.1:9490").replace(/\/$/, "");

async function samplesExist() {
  const r = await fetch(`${base}/api/v1/query?query=count(rate(scrape_duration_seconds[1m]))`);
  return (await r.json()).data?.result?.length > 0;
}

async function runOne(browser, name, body) {
  const tab = await openTab(browser, base);
  try {
    await body(tab);
    if (tab.errors.length > 0) throw new Error(`console: ${tab.errors.join(" | ")}`);
    if (tab.foreign.length > 0) throw new Error(`requests to other hosts: ${tab.foreign.join(" ")}`);
    console.log(`ok   ${name}`);
    return true;
  } catch (e) {
    console.log(`FAIL ${name}\n     ${String(e.message).split("\n").join("\n     ")}`);
    return false;
  } finally {
    await tab.context.close();
  }
}

async function main() {
  await until(`samples at ${base}`, samplesExist, 60_000);
  const browser = await launch();
  let [passed, failed] = [0, 0];
  for (const [name, body] of Object.entries({ ...query.checks, ...failures.checks, ...pages.checks, ...profiles.checks, ...profileviews.checks, ...parity.checks, ...crowd.checks, ...views.checks, ...hold.checks, ...pictures.checks }).filter(([name]) => name.includes(process.env.ONLY ?? ""))) {
    let ok = await runOne(browser, name, body);
    if (!ok && (ok = await runOne(browser, name, body))) console.log(`FLAKY: failed once, then passed: ${name}`);
    if (ok) passed++;
    else failed++;
  }
  await browser.close();
  console.log(`${passed} passed, ${failed} failed`);
  return failed > 0 ? 1 : 0;
}

process.exit(await main()); // whatever a check has left open
