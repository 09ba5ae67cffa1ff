// How a graph is drawn.
import { formatDuration } from "../lib/duration.ts";
import type { PanelState, Scale } from "../lib/urlstate.ts";

const EARLIER = [3_600_000, 86_400_000, 7 * 86_400_000, 28 * 86_400_000];

export function ViewControls({ panel, onChange }: { panel: PanelState; onChange: (p: Partial<PanelState>) => void }) {
  const earlier = panel.compareMS === 0 || EARLIER.includes(panel.compareMS) ? EARLIER : [...EARLIER, panel.compareMS];
  return (
    <>
      <label class="check"><input type="checkbox" checked={panel.stacked} onChange={(e) => onChange({ stacked: e.currentTarget.checked, heat: false })} />Stacked</label>
      <label class="check" title="Individual requests at their values"><input type="checkbox" checked={panel.exemplars} onChange={(e) => onChange({ exemplars: e.currentTarget.checked })} />Exemplars</label>
      <label class="check" title="Buckets of a histogram over time"><input type="checkbox" checked={panel.heat} onChange={(e) => onChange({ heat: e.currentTarget.checked, stacked: false })} />Heat map</label>
      <select class="button small" aria-label="Scale of the values" title="Scale of the values" value={panel.scale} onChange={(e) => onChange({ scale: e.currentTarget.value as Scale })}>
        <option value="auto">Scale: fit</option><option value="zero">Scale: from zero</option><option value="log">Scale: logarithmic</option>
      </select>
      <select class="button small" aria-label="Compare with" title="The same series at an earlier time" value={String(panel.compareMS)} onChange={(e) => onChange({ compareMS: Number(e.currentTarget.value) })}>
        <option value="0">Compare: none</option>
        {earlier.map((ms) => <option key={ms} value={String(ms)}>{formatDuration(ms)} earlier</option>)}
      </select>
    </>
  );
}
