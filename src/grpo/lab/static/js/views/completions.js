// Search of all completions of a run, by text, reward, advantage and finish reason.
import { html } from "htm/preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { Line } from "../episode.js";
import { number } from "../format.js";
import { Advantage, Empty, Failed, Loading, Reward, Segmented, VirtualList } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";

const FILTERS = [
  ["right", "right"],
  ["wrong", "wrong"],
  ["above", "advantage above 0"],
  ["below", "below 0"],
  ["level", "exactly 0"],
  ["cut", "truncated"],
  ["unscored", "unscored"],
];

export function Completions({ url, query, base }) {
  const text = query.get("text") ?? "";
  const filters = (query.get("filters") ?? "").split(",").filter(Boolean);
  const order = query.get("order") ?? "newest";
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => typed !== text && setQuery({ text: typed }), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const key = JSON.stringify([url, text, filters, order]);
  const [found, setFound] = useState({ key: null, rows: [], next: undefined, error: null });
  const busy = useRef(false);
  const more = useCallback(
    (fresh = false) => {
      if (busy.current === key || (!fresh && (found.next === null || found.next === undefined))) return;
      busy.current = key;
      get(address(`${url}/completions`, { text, filters: filters.join(","), order, begin: fresh ? undefined : found.next })).then(
        (page) => {
          if (busy.current !== key) return;
          busy.current = false;
          setFound((last) => ({ key, rows: fresh ? page.rows : [...last.rows, ...page.rows], next: page.next, error: null }));
        },
        (error) => {
          busy.current = false;
          setFound((last) => ({ ...last, key, error }));
        },
      );
    },
    [key, found.next],
  );
  useEffect(() => more(true), [key]);
  const onEnd = useCallback(() => more(), [more]);
  const turn = (name) => setQuery({ filters: (filters.includes(name) ? filters.filter((other) => other !== name) : [...filters, name]).join(",") });
  const waiting = found.key !== key;
  return html`
    <div class="row search">
      <label class="grow"><span class="visually-hidden">Search prompts and completions</span><input type="search" placeholder="Search prompts and completions" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
      <${Segmented} label="Order" value=${order} onChange=${(next) => setQuery({ order: next })} options=${[["newest", "newest first"], ["oldest", "oldest first"]]} />
    </div>
    <div class="row chips" role="group" aria-label="Filters">${FILTERS.map(([name, label]) => html`<button type="button" class="chip ${filters.includes(name) ? "chosen" : ""}" aria-pressed=${filters.includes(name)} onClick=${() => turn(name)}>${label}</button>`)}</div>
    ${found.error && html`<${Failed} error=${found.error} />`}
    ${waiting && !found.rows.length
      ? html`<${Loading} height="70vh" />`
      : !found.rows.length && found.next === null
        ? html`<${Empty} title="Nothing matches">No completion of this run matches. Remove a filter or shorten the search text.<//>`
        : html`<p class="small soft" role="status">${number(found.rows.length)} shown${found.next === null ? ", all loaded" : ", scroll for more"}</p>
          <${VirtualList} rows=${found.rows} rowHeight=${58} onEnd=${onEnd} height="calc(100vh - 300px)" label="Completions"
            render=${(row) => html`<${Link} key=${`${row.step}/${row.group_index}/${row.sample_index}`} class="hit" to=${address(`${base}/groups`, { step: row.step, group: row.group_index, sample: row.sample_index })}>
              <span class="num faint small">${row.step}</span><${Advantage} value=${row.advantage} /><${Reward} value=${row.reward} />
              <span class="hit-text"><${Untrusted} text=${row.prompt} class="clip soft" />${row.turns.length ? html`<${Line} turns=${row.turns} />` : html`<${Untrusted} text=${row.text} class="clip" />`}</span>
              <span class="num faint small">${row.length}${row.finish !== "stop" ? " truncated" : ""}</span>
            <//>`} />`}`;
}
