// A range of time to the second.
import { formatTime, type Zone } from "./time.ts";

export function formatSpanSeconds(from: number, to: number, zone: Zone): string {
  const [a, b] = [formatTime(Math.floor(from / 1000) * 1000, zone), formatTime(Math.floor(to / 1000) * 1000, zone)];
  return `${a} – ${a.slice(0, 10) === b.slice(0, 10) ? b.slice(11) : b}`;
}
