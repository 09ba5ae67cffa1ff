// "Why did it change": from a selected range of a graph to the differential flame graph of that range against the same
// length before it. What opens it is loaded when it is used.
import { useFeatures, useServer } from "../api/hooks.ts";
import type { Labels } from "../lib/labels.ts";
import { useNav } from "../nav.ts";
import type { Brush } from "./chart.tsx";

export function useReason(sets: readonly Labels[]): Brush | null {
  const server = useServer();
  const nav = useNav();
  const features = useFeatures();
  if (features?.["profiles"] !== true) return null;
  return {
    onDiff: (fromMS, toMS) => void import("./openreason.ts").then(
      ({ profilesOf }) => profilesOf(server, sets, fromMS, toMS).then((search) => nav.go("profiles", search)),
      () => location.reload(), // the server was upgraded and no longer has the file
    ),
  };
}
