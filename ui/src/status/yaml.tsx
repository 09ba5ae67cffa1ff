// YAML with coloured keys, without a parser.

const LINE = /^(\s*(?:- )*)([\w.\-/"']+)(:)(\s.*)?$/;

export function Yaml({ text }: { text: string }) {
  return <pre class="yaml" tabIndex={0}>{text.trimEnd().split("\n").map((line, i) => <Line key={i} text={line} />)}</pre>;
}

function Line({ text }: { text: string }) {
  const m = LINE.exec(text);
  if (!m) return <span class={/^\s*#/.test(text) ? "comment" : ""}>{text}{"\n"}</span>;
  return <span>{m[1]}<span class="key">{m[2]}</span><span class="punct">{m[3]}</span>{m[4]}{"\n"}</span>;
}
