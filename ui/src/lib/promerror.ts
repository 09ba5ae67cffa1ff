// The position in a query that an error message of Prometheus names.

export interface Mark { from: number; to: number }

/**
 * Finds `line:column` in a message: "1:5: parse error: …" in errors, "(1:6)" at the end of infos and warnings. Columns
 * count bytes from 1, and a string's index counts UTF-16 units, so the line is walked. The mark covers the word there.
 */
export function findMark(message: string, expr: string): Mark | null {
  const m = /(?:^|[\s"(])(\d+):(\d+)(?::\s|\)\s*$)/.exec(message);
  if (!m) return null;
  const lines = expr.split("\n");
  const line = Number(m[1]) - 1;
  const text = lines[line];
  if (text === undefined) return null;
  const before = lines.slice(0, line).reduce((n, l) => n + l.length + 1, 0);
  const column = indexOfByte(text, Number(m[2]) - 1);
  const word = /^(?:[\w:]+|\S)/.exec(text.slice(column));
  const from = before + column;
  // A position at the end ("unexpected end of input") marks the last character, for there is none under it.
  if (!word) return expr.length === 0 ? null : { from: Math.max(0, Math.min(from, expr.length) - 1), to: Math.min(from, expr.length) };
  return { from, to: from + word[0].length };
}

function indexOfByte(text: string, byte: number): number {
  let seen = 0;
  let i = 0;
  for (const ch of text) {
    if (seen >= byte) break;
    const code = ch.codePointAt(0)!;
    seen += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    i += ch.length;
  }
  return i;
}

/** The message without Prometheus' outer wording, which does not help the person who typed the query. */
export function plainMessage(message: string): string {
  return message.replace(/^invalid parameter "query": /, "");
}
