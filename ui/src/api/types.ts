// Types of the responses of Prometheus' HTTP API v1, with the members that the page reads.
import type { Labels } from "../lib/labels.ts";
import type { HistogramValue, MatrixSeries } from "../lib/matrix.ts";
import type { RangeData } from "./client.ts";

export interface VectorSample { metric: Labels; value?: [number, string]; histogram?: [number, HistogramValue] }

/** Of an instant query, and of a range query as it was scanned. */
export type QueryData = InstantData | RangeData;

export type InstantData =
  | { resultType: "vector"; result: VectorSample[] }
  | { resultType: "matrix"; result: MatrixSeries[] }
  | { resultType: "scalar" | "string"; result: [number, string] };

export type Metadata = Record<string, { type: string; help: string; unit?: string }[]>;

export interface Target {
  discoveredLabels: Labels;
  labels: Labels;
  scrapePool: string;
  scrapeUrl: string;
  globalUrl: string;
  lastError: string;
  lastScrape: string;
  lastScrapeDuration: number;
  health: "up" | "down" | "unknown";
  scrapeInterval?: string;
  scrapeTimeout?: string;
}

export interface TargetsData {
  activeTargets: Target[] | null;
  droppedTargets?: { discoveredLabels: Labels; scrapePool?: string }[] | null;
  droppedTargetCounts?: Record<string, number> | null;
}

export interface NameValue { name: string; value: number }

export interface TSDBStatus {
  headStats: { numSeries: number; numLabelPairs: number; chunkCount: number; minTime: number; maxTime: number };
  seriesCountByMetricName: NameValue[] | null;
  labelValueCountByLabelName: NameValue[] | null;
  memoryInBytesByLabelName: NameValue[] | null;
  seriesCountByLabelValuePair: NameValue[] | null;
}

export interface WALReplay { min: number; max: number; current: number }
