// Search of all completions of a run: text or a regular expression, ranges of values, order by any column.
import { html } from "htm/preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { Line } from "../episode.js";
import { number, plural } from "../format.js";
import { useStyle } from "../load.js";
import { Advantage, Empty, Failed, Loading, Reward, VirtualList } from "../parts.js";
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
// Sortable columns: title, orders of the first and the second click.
const COLUMNS = {
  step: ["Step", "newest", "oldest"],
  advantage: ["Advantage", "-advantage", "advantage"],
  reward: ["Reward", "-reward", "reward"],
  length: ["Tokens", "-length", "length"],
};
const ORDERS = {
  newest: "newest first", oldest: "oldest first", "-advantage": "highest advantage first", advantage: "lowest advantage first",
  "-reward": "highest reward first", reward: "lowest reward first", "-length": "longest first", length: "shortest first",
};
const LIMITS = Object.keys(COLUMNS).flatMap((name) => [`${name}_min`, `${name}_max`]);

// The pages found so far, and the function that asks for the next one.
function useSearch(url, asked) {
  const key = address(`${url}/completions`, asked);
  const [found, setFound] = useState({ key: null, rows: [], next: undefined, cut: null, error: null });
  const busy = useRef(null);
  const more = useCallback(
    (fresh = false) => {
      if (busy.current === key || (!fresh && (found.next === null || found.next === undefined))) return;
      busy.current = key;
      get(address(`${url}/completions`, { ...asked, begin: fresh ? undefined : found.next })).then(
        (page) => {
          if (busy.current !== key) return;
          busy.current = null;
          setFound((last) => ({ key, rows: fresh ? page.rows : [...last.rows, ...page.rows], next: page.next, cut: page.cut, error: null }));
        },
        (error) => {
          if (busy.current !== key) return;
          busy.current = null;
          setFound((last) => ({ ...last, key, next: null, error }));
        },
      );
    },
    [key, found.next],
  );
  useEffect(() => more(true), [key]);
  return { found, waiting: found.key !== key, more };
}

export function Completions({ url, query, base }) {
  useStyle("css/completions.css");
  const named = (name) => query.get(name) || undefined;
  const asked = Object.fromEntries(["text", "regex", "filters", "order", ...LIMITS].map((name) => [name, named(name)]));
  const { found, waiting, more } = useSearch(url, asked);
  const onEnd = useCallback(() => more(), [more]);
  return html`
    <${Asked} asked=${asked} problem=${found.error?.message.startsWith("text: ") ? found.error.message.slice(6) : null} />
    ${found.cut && asked.text && html`<p class="small soft" data-cut>Long texts are cut in this file: only the first ${found.cut} characters of a completion are
      searched.</p>`}
    ${found.error && !found.error.message.startsWith("text: ") && html`<${Failed} error=${found.error} />`}
    ${waiting && !found.rows.length
      ? html`<${Loading} height="70vh" />`
      : !found.rows.length && found.next === null
        ? !found.error && html`<${Empty} title="Nothing matches">No completion of this run matches. Remove a filter or shorten the search text.<//>`
        : html`<p class="small soft" role="status">${matches(found)}, ${ORDERS[asked.order ?? "newest"]}</p>
          <div class="hits"><${Head} order=${asked.order ?? "newest"} />
          <${VirtualList} key=${found.key} rows=${found.rows} rowHeight=${58} onEnd=${onEnd} height="calc(100vh - 340px)" label="Completions"
            render=${(row) => html`<${Hit} key=${`${row.step}/${row.group_index}/${row.sample_index}`} row=${row} base=${base} />`} />
          </div>`}`;
}

// The number of matches is known at the end of the search.
function matches({ rows, next, error }) {
  if (error) return `The last ${plural(rows.length, "result")}`;
  if (next === null) return plural(rows.length, "match", "matches");
  return rows.length ? `The first ${number(rows.length)} matches (scroll for more)` : "Searching …";
}

// What is typed now, which the address follows a moment later. An address that changes by itself (Back) is followed.
function useTyped(name, value = "") {
  const [typed, setTyped] = useState(value);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) {
      sent.current = value;
      setTyped(value);
      return;
    }
    if (typed === value) return;
    const timer = setTimeout(() => {
      sent.current = typed;
      setQuery({ [name]: typed || undefined });
    }, 300);
    return () => clearTimeout(timer);
  }, [typed, value]);
  return [typed, setTyped];
}

// What is searched for: a text or pattern, filters, and ranges of values.
function Asked({ asked, problem }) {
  const [typed, setTyped] = useTyped("text", asked.text);
  const filters = (asked.filters ?? "").split(",").filter(Boolean);
  const turn = (name) => setQuery({
    filters: (filters.includes(name) ? filters.filter((other) => other !== name) : [...filters, name]).join(",") || undefined,
  });
  const limited = LIMITS.some((name) => asked[name]);
  return html`
    <div class="row search">
      <label class="grow"><span class="visually-hidden">Search prompts and completions</span>
        <input type="search" maxlength="200" placeholder=${asked.regex ? "Regular expression, such as ^\\d+$" : "Search prompts and completions"} value=${typed}
          onInput=${(event) => setTyped(event.target.value)} />
      </label>
      <button type="button" class="chip ${asked.regex ? "chosen" : ""}" aria-pressed=${Boolean(asked.regex)}
        onClick=${() => setQuery({ regex: asked.regex ? undefined : "1" })}>
        <code aria-hidden="true">.*</code> regular expression</button>
      <label class="order small soft">Order <select value=${asked.order ?? "newest"} onChange=${(event) => setQuery({ order: event.target.value })}>
        ${Object.entries(ORDERS).map(([key, text]) => html`<option value=${key} selected=${key === (asked.order ?? "newest")}>${text}</option>`)}</select>
      </label>
    </div>
    ${problem && html`<p class="small warn search-problem" role="alert">Not searched: ${problem}.</p>`}
    <div class="row chips" role="group" aria-label="Filters">
      ${FILTERS.map(([name, label]) => html`<button type="button" class="chip ${filters.includes(name) ? "chosen" : ""}" aria-pressed=${filters.includes(name)}
        onClick=${() => turn(name)}>
        ${label}</button>`)}
    </div>
    <details class="ranges" open=${limited}><summary class="small">Ranges of step, advantage, reward and tokens</summary>
      <div class="range-list">
        ${Object.entries(COLUMNS).map(([name, [title]]) => html`<fieldset key=${name}><legend class="small">${title}</legend>
          <${Limit} name=${`${name}_min`} label="from" of=${title} value=${asked[`${name}_min`]} />
          <${Limit} name=${`${name}_max`} label="to" of=${title} value=${asked[`${name}_max`]} /></fieldset>`)}
      </div>
    </details>`;
}

function Limit({ name, label, of, value }) {
  const [typed, setTyped] = useTyped(name, value);
  return html`<label class="small soft">
    ${label} <input type="number" step="any" aria-label=${`${of} ${label}`} value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`;
}

// The columns' names; a click sorts by the column.
function Head({ order }) {
  const sorter = (name) => {
    const [title, first, second] = COLUMNS[name];
    const next = order === first ? second : first;
    return html`<button type="button" class="sorter" aria-label=${`${title}: sort ${ORDERS[next]}`} onClick=${() => setQuery({ order: next })}>${title}
      ${order === first ? " ↓" : order === second ? " ↑" : ""}</button>`;
  };
  return html`<div class="hit hit-head" role="group" aria-label="Columns">${sorter("step")}${sorter("advantage")}${sorter("reward")}
    <span class="sorter">Prompt and completion</span>${sorter("length")}</div>`;
}

function Hit({ row, base }) {
  return html`<${Link} class="hit" to=${address(`${base}/groups`, { step: row.step, group: row.group_index, sample: row.sample_index })}>
    <span class="num faint small">${row.step}</span><${Advantage} value=${row.advantage} /><${Reward} value=${row.reward} />
    <span class="hit-text"><${Untrusted} text=${row.prompt} class="clip soft" />
      ${row.turns.length ? html`<${Line} turns=${row.turns} />` : html`<${Untrusted} text=${row.text} class="clip" />`}</span>
    <span class="num faint small">${row.length}${row.finish !== "stop" ? " truncated" : ""}</span>
  <//>`;
}
