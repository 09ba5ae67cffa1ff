// Blocks of the server's TSDB, or of the bucket that a store reads: by external labels, on a timeline and as a table.
import { useMemo, useState } from "preact/hooks";
import { APIError } from "../api/client.ts";
import { has, useAPI, useFeatures } from "../api/hooks.ts";
import { groupBlocks, tracksOf, levelOf, resolutionOf, resolutionText, type BlockGroup, type BlockMeta } from "../lib/blocks.ts";
import { formatDuration } from "../lib/duration.ts";
import { formatCount, formatShort, plural } from "../lib/format.ts";
import { formatTime, type Zone } from "../lib/time.ts";
import { useSearchParam } from "../parts/searchparam.ts";
import { Empty, Failure, Filter, LabelList, Progress, Warnings } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";

/** refreshedAt and err are the time and the error of the last listing of a bucket. */
interface BlocksData { blocks: BlockMeta[] | null; err?: string | null; refreshedAt?: string }

const ROWS_MAX = 100;
const ROWS_MORE = 500;
/** A bucket may have tens of thousands of blocks. The timeline has the newest of a group. */
const BOXES_MAX = 1500;
const GROUPS_MAX = 50;

export function Blocks() {
  const features = useFeatures();
  const { zone } = usePrefs();
  const own = has(features, "tsdb");
  const [text, setText] = useSearchParam("find");
  const { result, error, loading, reload } = useAPI<BlocksData>(features === null ? null : own ? "status/tsdb/blocks" : "blocks");
  const groups = useMemo(() => groupBlocks(result?.data.blocks ?? [], text), [result, text]);
  if (error instanceof APIError && error.status === 404) return <Empty title="This server has no blocks"><code>ferula serve</code> and <code>ferula store</code> have them.</Empty>;
  const all = result?.data.blocks?.length ?? 0;
  return (
    <>
      <div class="card-tools blocks-tools"><Filter value={text} onInput={setText} label="Filter by ULID, label, resolution or level:2" /><span class="hint">{result ? plural(all, "block") : ""}</span></div>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {result?.data.err && <Warnings list={[outOfDate(result.data.err, result.data.refreshedAt, zone)]} />}
      {groups.slice(0, GROUPS_MAX).map((g) => <Group key={g.name} group={g} />)}
      {groups.length > GROUPS_MAX && <p class="hint">The first {GROUPS_MAX} of {formatCount(groups.length)} label sets; a filter finds the others.</p>}
      {result && all === 0 && <Empty title="No blocks yet">{own ? "The head becomes the first block after two to three hours." : "The store serves no block of its bucket. Its metric thanos_blocks_meta_synced counts the blocks that it leaves out, by reason."}</Empty>}
      {all > 0 && groups.length === 0 && <Empty title="No block matches the filter" />}
    </>
  );
}

const outOfDate = (err: string, at: string | undefined, zone: Zone): string =>
  `The bucket could not be listed${at ? ` at ${formatTime(second(Date.parse(at)), zone)}` : ""}. The page shows the blocks of the last list: ${err}`;

const second = (ms: number): number => Math.floor(ms / 1000) * 1000;

function Group({ group: g }: { group: BlockGroup }) {
  const { zone } = usePrefs();
  const [rows, setRows] = useState(ROWS_MAX);
  return (
    <section class="card pool blocks" aria-label={`Blocks of ${g.name}`}>
      <h2>
        {Object.keys(g.labels).length > 0 ? <LabelList labels={g.labels} /> : "TSDB"}
        <span class="hint">{plural(g.blocks.length, "block")} · {formatShort(g.samples)} samples · {formatTime(second(g.minTime), zone)} – {formatTime(second(g.maxTime), zone)}</span>
      </h2>
      <Timeline group={g} zone={zone} />
      <div class="table-scroll">
        <table class="data block-table">
          <thead><tr><th scope="col">ULID</th><th scope="col">From</th><th scope="col">To</th><th scope="col" class="num">Length</th><th scope="col" class="num">Level</th><th scope="col">Resolution</th>
            <th scope="col" class="num">Series</th><th scope="col" class="num">Samples</th><th scope="col" class="num">Chunks</th></tr></thead>
          <tbody>
            {g.blocks.slice(0, rows).map((b) => (
              <tr key={b.ulid}>
                <th scope="row"><code>{b.ulid}</code></th><td>{formatTime(second(b.minTime), zone)}</td><td>{formatTime(second(b.maxTime), zone)}</td>
                <td class="num">{formatDuration(second(b.maxTime - b.minTime))}</td><td class="num">{levelOf(b)}</td><td>{resolutionText(resolutionOf(b))}</td>
                <td class="num">{formatCount(b.stats?.numSeries ?? 0)}</td><td class="num">{formatCount(b.stats?.numSamples ?? 0)}</td><td class="num">{formatCount(b.stats?.numChunks ?? 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows < g.blocks.length && <p class="hint rules-more">The newest {formatCount(rows)} of {formatCount(g.blocks.length)}.<button type="button" class="link" onClick={() => setRows(rows + ROWS_MORE)}>Show more</button></p>}
    </section>
  );
}

const titleOf = (b: BlockMeta, zone: Zone): string =>
  `${b.ulid}\n${formatTime(second(b.minTime), zone)} – ${formatTime(second(b.maxTime), zone)}\n${plural(b.stats?.numSeries ?? 0, "series", "series")}, ${plural(b.stats?.numSamples ?? 0, "sample")}`;

/** Time from left to right, a row for each resolution and level. The table below has the same blocks in words. */
function Timeline({ group: g, zone }: { group: BlockGroup; zone: Zone }) {
  const tracks = useMemo(() => tracksOf(g.blocks.slice(0, BOXES_MAX)), [g]);
  const span = Math.max(1, g.maxTime - g.minTime);
  return (
    <div class="tracks" aria-hidden="true">
      {tracks.map((l, i) => (
        <div class="track" key={i}>
          <span class="track-name">{resolutionText(l.resolution)}, level {l.level}</span>
          <svg class="track-boxes" viewBox="0 0 1000 10" preserveAspectRatio="none">
            {l.blocks.map((b) => (
              <rect key={b.ulid} class={`level-${Math.min(l.level, 4)}`} x={(1000 * (b.minTime - g.minTime)) / span} y="0" width={Math.max(1, (1000 * (b.maxTime - b.minTime)) / span - 0.6)} height="10">
                <title>{titleOf(b, zone)}</title>
              </rect>
            ))}
          </svg>
        </div>
      ))}
    </div>
  );
}
