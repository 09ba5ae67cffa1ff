// Targets, grouped and filtered.

export type HealthFilter = "any" | "up" | "down" | "unknown";

interface AnyTarget { scrapePool: string; scrapeUrl: string; lastError: string; health: string; labels: Readonly<Record<string, string>> }

export interface PoolOf<T> { name: string; targets: T[]; dropped: number }

export function countHealth(targets: readonly { health: string }[]): { up: number; down: number; unknown: number } {
  const up = targets.filter((t) => t.health === "up").length;
  const down = targets.filter((t) => t.health === "down").length;
  return { up, down, unknown: targets.length - up - down };
}

/** Every word must occur in the address, the error, or a label as name="value", name=value or value. */
export function filterTargets<T extends AnyTarget>(targets: readonly T[], text: string, health: HealthFilter): T[] {
  const words = text.toLowerCase().replace(/"/g, "").split(/\s+/).filter((w) => w !== "");
  return targets.filter((t) => {
    if (health !== "any" && t.health !== health) return false;
    const labels = Object.entries(t.labels).map(([k, v]) => `${k}=${v}`).join(" ");
    const all = `${t.scrapePool} ${t.scrapeUrl} ${t.lastError} ${labels}`.toLowerCase();
    return words.every((w) => all.includes(w));
  });
}

interface Dropped { droppedTargetCounts?: Record<string, number> | null; activeTargets: readonly AnyTarget[] | null }

/** Pools by name. A pool whose targets were all dropped is listed too: that is when one looks for the reason. */
export function groupTargets<T extends AnyTarget>(targets: readonly T[], data: Dropped | null): PoolOf<T>[] {
  const pools = new Map<string, PoolOf<T>>();
  const counts = data?.droppedTargetCounts ?? {};
  const pool = (name: string) => {
    let p = pools.get(name);
    if (!p) pools.set(name, (p = { name, targets: [], dropped: counts[name] ?? 0 }));
    return p;
  };
  for (const t of targets) pool(t.scrapePool).targets.push(t);
  const active = new Set((data?.activeTargets ?? []).map((t) => t.scrapePool));
  for (const [name, n] of Object.entries(counts)) if (n > 0 && !active.has(name)) pool(name);
  return [...pools.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}
