// "Why did it change": opens the differential flame graph of a selected range of a graph against the same
// length before it. The code that opens it is loaded when it is first used.
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
