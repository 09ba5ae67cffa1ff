// Colours for canvases, read from the style sheet, so that only tokens.css contains colours.

/** How many --s0, --s1, … tokens.css defines for each theme. */
export const SERIES_COLORS = 14;

export interface Palette {
  series: (i: number) => string;
  /** The colour laid thinly over the surface, as one opaque colour. */
  over: (color: string) => string;
  surface: string;
  text: string;
  accent: string;
  /** Of a difference: more than before, and less. */
  more: string;
  less: string;
  muted: string;
  grid: string;
  /** Grid lines that lie over coloured areas. */
  gridOver: string;
  font: string;
  axisFont: string;
}

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(name).trim();
  const color = (name: string) => normal(read(name));
  const series = Array.from({ length: SERIES_COLORS }, (_, i) => color(`--s${i}`));
  const surface = color("--surface");
  const axisFont = `11.5px ${read("--sans")}`;
  return {
    series: (i) => series[i % SERIES_COLORS]!,
    over: (color) => blend(color, surface, 0.45),
    surface,
    text: color("--text"),
    accent: color("--accent"),
    more: color("--more"),
    less: color("--less"),
    muted: color("--muted"),
    grid: color("--grid"),
    gridOver: fadeColor(color("--text"), 0.1),
    font: `${11.5 * devicePixelRatio}px ${read("--sans")}`,
    axisFont,
  };
}

function channels(hex: string): [number, number, number] {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

/** Any CSS colour as #rrggbb: the bundler shortens what the style sheet has, and a canvas returns the long form. */
function normal(color: string): string {
  const context = document.createElement("canvas").getContext("2d")!;
  context.fillStyle = color;
  return String(context.fillStyle);
}

/** The same as #rrggbb for two such colours. */
export const blendColors = (a: string, b: string, share: number): string => blend(a, b, share);

/** `a` at that share, `b` for the rest. */
function blend(a: string, b: string, share: number): string {
  const [x, y] = [channels(a), channels(b)];
  return `rgb(${x.map((v, i) => Math.round(v * share + y[i]! * (1 - share))).join(" ")})`;
}

export function fadeColor(hex: string, alpha: number): string {
  return `rgb(${channels(hex).join(" ")} / ${alpha})`;
}
