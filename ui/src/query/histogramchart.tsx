// A histogram as a chart: bars on an axis of values, and its buckets as a table.
import { useMemo, useState } from "preact/hooks";
import { formatCount, formatShort } from "../lib/format.ts";
import { placeBars, type ClassicHistogram, type HistogramView } from "../lib/histogram.ts";
import { LabelList, Segments } from "../parts/small.tsx";

interface ChartProps { view: HistogramView; linear: boolean; onLinear: (on: boolean) => void }

const CARDS = 20;

function HistogramChart({ view, linear, onLinear }: ChartProps) {
  const { placed, ticks } = useMemo(() => placeBars(view.bars, linear), [view, linear]);
  if (view.bars.length === 0) return <p class="hint">No buckets with observations.</p>;
  return (
    <figure class="histogram-chart">
      <Segments<"exponential" | "linear"> label="Axis" value={linear ? "linear" : "exponential"} options={[["exponential", "Exponential"], ["linear", "Linear"]]} onChange={(to) => onLinear(to === "linear")} />
      <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label={`Histogram of ${view.bars.length} buckets on ${linear ? "a linear" : "an exponential"} axis; the buckets are listed below`}>
        {placed.map((p) => (
          <rect key={p.bar.text} x={1000 * p.x0} y={100 - 100 * p.height} width={Math.max(0.5, 1000 * (p.x1 - p.x0) - 1)} height={100 * p.height}>
            <title>{`${p.bar.text}: ${formatShort(p.bar.count)}`}</title>
          </rect>
        ))}
      </svg>
      <div class="histogram-axis" aria-hidden="true">{ticks.map((t) => <span key={t.value} style={{ left: `${100 * t.at}%` }}>{formatShort(t.value)}</span>)}</div>
      <figcaption class="hint">{linear ? "Areas are counts of observations." : "Heights are counts of observations."}</figcaption>
    </figure>
  );
}

function Buckets({ view }: { view: HistogramView }) {
  return (
    <table class="buckets">
      <thead><tr><th scope="col">Bucket</th><th scope="col">Count</th></tr></thead>
      <tbody>{view.bars.map((b) => <tr key={b.text}><td>{b.text}</td><td><span class="bucket-bar" style={{ width: `${b.height * 100}%` }} /><span>{formatShort(b.count)}</span></td></tr>)}</tbody>
    </table>
  );
}

/** A native histogram in a row of a table: a sketch, which opens. */
export function HistogramDetails(props: ChartProps) {
  const { view } = props;
  const [open, setOpen] = useState(false);
  return (
    <details class="histogram" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        <Sketch view={view} />
        <span class="histogram-figures">count {formatShort(view.count)} · sum {formatShort(view.sum)} · mean {formatShort(view.mean)}</span>
      </summary>
      {open && <><HistogramChart {...props} /><Buckets view={view} /></>}
    </details>
  );
}

/** Classic histograms, each as a chart. */
export function HistogramCards({ all, linear, onLinear }: { all: readonly ClassicHistogram[]; linear: boolean; onLinear: (on: boolean) => void }) {
  const [most, setMost] = useState(CARDS);
  return (
    <div class="histogram-cards">
      {all.slice(0, most).map((h, i) => (
        <section key={i} class="histogram-card" aria-label={`Histogram ${i + 1}`}>
          <div class="histogram-head"><LabelList labels={h.labels} /><span class="hint">count {formatShort(h.view.count)}</span></div>
          <HistogramChart view={h.view} linear={linear} onLinear={onLinear} />
          <details><summary class="hint">Buckets</summary><Buckets view={h.view} /></details>
        </section>
      ))}
      {all.length > most && <p class="note">The first {formatCount(most)} of {formatCount(all.length)} histograms.<button type="button" class="link" onClick={() => setMost(most + CARDS)}>Show more</button></p>}
    </div>
  );
}

const BAR = 4;

function Sketch({ view }: { view: HistogramView }) {
  const width = Math.max(view.bars.length, 1) * BAR;
  return (
    <svg class="sketch" width={Math.min(width, 240)} height="22" viewBox={`0 0 ${width} 22`} preserveAspectRatio="none" role="img" aria-label={`${view.bars.length} buckets`}>
      {view.bars.map((b, i) => <rect key={b.text} x={i * BAR} y={22 - Math.max(1, b.height * 22)} width={BAR - 1} height={Math.max(1, b.height * 22)} />)}
    </svg>
  );
}
