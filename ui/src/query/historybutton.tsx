// Past queries behind a button next to the editor.
import { useState } from "preact/hooks";
import { readHistory } from "../lib/history.ts";
import * as icons from "../parts/icons.tsx";
import { Popover } from "../parts/popover.tsx";
import { Filter } from "../parts/small.tsx";
import { store } from "../store.ts";

const SHOWN_MAX = 50;

export function HistoryButton({ onPick }: { onPick: (expr: string) => void }) {
  return (
    <Popover label="Past queries" button={<icons.Clock />} buttonClass="button quiet icon-only" align="right">
      {(close) => <HistoryList onPick={(e) => { close(); onPick(e); }} />}
    </Popover>
  );
}

function HistoryList({ onPick }: { onPick: (expr: string) => void }) {
  const [filter, setFilter] = useState("");
  const all = readHistory(store);
  const list = all.filter((e) => e.toLowerCase().includes(filter.toLowerCase())).slice(0, SHOWN_MAX);
  if (all.length === 0) return <p class="hint">Queries you run are kept here, in this browser.</p>;
  return (
    <div class="history">
      <Filter value={filter} onInput={setFilter} label="Filter past queries" />
      <ul>{list.map((e) => <li key={e}><button type="button" onClick={() => onPick(e)}>{e}</button></li>)}</ul>
    </div>
  );
}
