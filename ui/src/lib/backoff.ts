// Delays before the next request: between probes of a server that is away, and the pause of automatic refresh after failures.

/** Delays between probes of an unreachable server. The last one repeats. */
const PROBE_DELAYS_MS = [1500, 3000, 6000, 12_000, 20_000, 30_000];
/** The first pause of automatic refresh after a failure; it doubles with each further failure. */
export const REFRESH_PAUSE_MS = 30_000;
const REFRESH_PAUSE_MAX_MS = 300_000;

/** The delay before probe `attempt` (from 0), spread by up to a fifth so that many tabs do not probe together. */
export function probeDelayMS(attempt: number, random: () => number = Math.random): number {
  const base = PROBE_DELAYS_MS[Math.min(attempt, PROBE_DELAYS_MS.length - 1)]!;
  return base * (0.8 + 0.4 * random());
}

/**
 * RefreshGate decides whether a tick of automatic refresh may send requests. A tick never overlaps requests that are
 * still running, and after a round with a failure the next round waits, longer after each failed round.
 */
export class RefreshGate {
  private running = 0;
  private failedRounds = 0;
  private failed = false;
  private openAtMS = 0;
  private readonly now: () => number;

  constructor(now: () => number = Date.now) {
    this.now = now;
  }

  begin(): void {
    this.running++;
  }

  /** Ends a request. `failed` is for failures of the server, not for a query that is wrong or was cancelled. */
  end(failed: boolean): void {
    this.running--;
    if (!failed || this.failed) return;
    this.failed = true;
    this.failedRounds++;
    this.openAtMS = this.now() + Math.min(REFRESH_PAUSE_MS * 2 ** (this.failedRounds - 1), REFRESH_PAUSE_MAX_MS);
  }

  /** Takes a tick: true starts a new round. */
  tick(): boolean {
    if (this.running > 0 || this.now() < this.openAtMS) return false;
    if (!this.failed) this.failedRounds = 0;
    this.failed = false;
    return true;
  }
}
