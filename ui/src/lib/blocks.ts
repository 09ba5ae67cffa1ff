// Blocks of a TSDB or of a bucket as their meta.json describes them: groups by external labels, and tracks of a timeline.
import { seriesText, type Labels } from "./labels.ts";

/** The members of a meta.json that the page reads. Times are in ms; maxTime is exclusive. */
export interface BlockMeta {
  ulid: string;
  minTime: number;
  maxTime: number;
  stats?: { numSamples?: number; numSeries?: number; numChunks?: number; numTombstones?: number };
  compaction?: { level?: number; sources?: string[] | null };
  thanos?: { labels?: Labels | null; downsample?: { resolution?: number }; source?: string };
}

/** Blocks of one external label set. Blocks of a TSDB have no external labels. */
export interface BlockGroup { name: string; labels: Labels; blocks: BlockMeta[]; samples: number; series: number; minTime: number; maxTime: number }

export const resolutionOf = (b: BlockMeta): number => b.thanos?.downsample?.resolution ?? 0;

export const levelOf = (b: BlockMeta): number => b.compaction?.level ?? 1;

/** Thanos' resolutions of downsampled blocks, in ms. */
export const resolutionText = (ms: number): string => (ms === 0 ? "raw" : ms % 3_600_000 === 0 ? `${ms / 3_600_000} h` : `${ms / 60_000} min`);

/** Groups ordered by their labels, with the newest block first. `find` matches the ULID, the labels, the source and the resolution. */
export function groupBlocks(blocks: readonly BlockMeta[], find: string): BlockGroup[] {
  const words = find.toLowerCase().split(/\s+/).filter((w) => w !== "");
  const by = new Map<string, BlockGroup>();
  for (const b of blocks) {
    const labels = b.thanos?.labels ?? {};
    const name = seriesText(Object.fromEntries(Object.entries(labels).sort(([x], [y]) => (x < y ? -1 : 1))));
    const text = `${b.ulid} ${name} ${b.thanos?.source ?? ""} ${resolutionText(resolutionOf(b))} level:${levelOf(b)}`.toLowerCase();
    if (!words.every((w) => text.includes(w))) continue;
    let g = by.get(name);
    if (!g) by.set(name, (g = { name, labels, blocks: [], samples: 0, series: 0, minTime: Infinity, maxTime: -Infinity }));
    g.blocks.push(b);
    g.samples += b.stats?.numSamples ?? 0;
    g.series = Math.max(g.series, b.stats?.numSeries ?? 0);
    g.minTime = Math.min(g.minTime, b.minTime);
    g.maxTime = Math.max(g.maxTime, b.maxTime);
  }
  const groups = [...by.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const g of groups) g.blocks.sort((a, b) => b.maxTime - a.maxTime || b.minTime - a.minTime || (a.ulid < b.ulid ? -1 : 1));
  return groups;
}

/** One row of a timeline: blocks of one resolution and level that do not overlap. */
export interface Track { resolution: number; level: number; blocks: BlockMeta[] }

/** Overlapping blocks of one resolution and level are in several tracks, so that each of them can be seen. */
export function tracksOf(blocks: readonly BlockMeta[]): Track[] {
  const tracks: (Track & { end: number })[] = [];
  for (const b of [...blocks].sort((x, y) => x.minTime - y.minTime)) {
    const [resolution, level] = [resolutionOf(b), levelOf(b)];
    let track = tracks.find((l) => l.resolution === resolution && l.level === level && l.end <= b.minTime);
    if (!track) tracks.push((track = { resolution, level, blocks: [], end: -Infinity }));
    track.blocks.push(b);
    track.end = b.maxTime;
  }
  return tracks.sort((a, b) => a.resolution - b.resolution || a.level - b.level).map(({ resolution, level, blocks: list }) => ({ resolution, level, blocks: list }));
}
