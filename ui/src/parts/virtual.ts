// Computes the visible rows of a long list whose rows have the same height.
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** Lists up to here are drawn whole: searching in the page then finds everything. */
const WHOLE_MAX = 120;
const MARGIN = 6;

export interface Rows { ref: { current: HTMLDivElement | null }; onScroll: () => void; from: number; to: number; /** Nothing is left out. Else rows are best keyed by their place, so that scrolling changes texts and makes no elements. */ whole: boolean; /** Pixels of what is left out. */ before: number; after: number }

export function useVirtual(count: number, rowPX: number): Rows {
  const ref = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 400 });
  const look = () => {
    const e = ref.current;
    if (e && (Math.abs(e.scrollTop - view.top) >= rowPX || e.clientHeight !== view.height)) setView({ top: e.scrollTop, height: e.clientHeight });
  };
  useLayoutEffect(look, [count]);
  if (count <= WHOLE_MAX) return { ref, onScroll: look, from: 0, to: count, whole: true, before: 0, after: 0 };
  const from = Math.max(0, Math.min(count - 1, Math.floor(view.top / rowPX)) - MARGIN);
  const to = Math.min(count, Math.ceil((view.top + view.height) / rowPX) + MARGIN);
  return { ref, onScroll: look, from, to, whole: false, before: from * rowPX, after: (count - to) * rowPX };
}
