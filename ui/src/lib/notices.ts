// Notifications of a server, as /api/v1/notifications/live sends them: one event for each that begins or ends.

export interface ServerNotice { text: string; date: string; active: boolean }

/** More than these push everything else off the screen. */
const NOTICES_MAX = 5;

/** The list after one event. What is no notification changes nothing. */
export function applyNotice(list: readonly ServerNotice[], data: string): readonly ServerNotice[] {
  let n: ServerNotice;
  try {
    n = JSON.parse(data) as ServerNotice;
  } catch {
    return list;
  }
  if (typeof n !== "object" || n === null || typeof n.text !== "string" || n.text === "") return list;
  const others = list.filter((o) => o.text !== n.text);
  return n.active === true ? [...others, n].slice(-NOTICES_MAX) : others;
}
