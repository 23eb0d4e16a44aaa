// The route: the whole state of a view is in the address, so that any view can be linked.
// The server serves pages by path: /learn/loss?depth=math#clip. A static site and an export have one page: there the
// same address follows the #, and the id of a section is the parameter `at`: index.html#/learn/loss?depth=math&at=clip.
// Everywhere else in this code an address has the first form.
import { signal } from "@preact/signals";
import { html } from "htm/preact";

// <html data-site> is set by `grpo lab build` and `grpo lab export`; data-home is the first page of an export.
const { site, home = "/" } = document.documentElement.dataset;

// Whether there is no server: the page belongs to a static site or to an export.
export const isStatic = () => site !== undefined;
export const isExport = () => site === "export";

// The URL of a file of static/.
export const staticFile = (path) => (isStatic() ? path : `/static/${path}`);

function parsed(text) {
  const { pathname, searchParams, hash } = new URL(`lab:///${text.replace(/^\/+/, "")}`);
  return { path: pathname.replace(/\/+$/, "") || "/", query: searchParams, id: hash.slice(1) };
}

// The decoded parts of a path. One that cannot be decoded, such as /runs/%zz, has a part that no page has.
export function partsOf(path) {
  try {
    return path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // border: people type addresses
    return [""];
  }
}

function here() {
  if (!isStatic()) return parsed(location.pathname + location.search + location.hash);
  const { path, query, id } = parsed(location.hash.slice(1) || home);
  const at = query.get("at") ?? id;
  query.delete("at");
  return { path, query, id: at };
}

export const route = signal(here());
const changed = () => (route.value = here());
addEventListener("popstate", changed);
addEventListener("hashchange", changed);

// An address of the lab. Names without a value are left out; `id` is a section of the page.
export function address(path, query = {}, id = "") {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return (text ? `${path}?${text}` : path) + (id && `#${id}`);
}

// The address as the browser's links and history need it. "#id" is a section of the current page.
function href(to) {
  const whole = to.startsWith("#") ? address(route.value.path, Object.fromEntries(route.value.query), to.slice(1)) : to;
  if (!isStatic()) return whole;
  const [page, id] = whole.split("#");
  return `#${page}${id ? `${page.includes("?") ? "&" : "?"}at=${id}` : ""}`;
}

export function go(to, { replace = false } = {}) {
  const before = route.value;
  const next = href(to);
  const now = isStatic() ? location.hash : location.pathname + location.search + location.hash;
  if (next !== now) history[replace ? "replaceState" : "pushState"](null, "", next);
  changed();
  if (route.value.path !== before.path) scrollTo(0, 0);
  else if (to.includes("#")) showSection(route.value.id);
}

// Moves to a section: into view, and the next Tab starts there.
function showSection(id) {
  const section = document.getElementById(id);
  if (!section) return;
  if (!section.hasAttribute("tabindex")) section.tabIndex = -1;
  section.focus({ preventScroll: true });
  section.scrollIntoView();
}

// Changes parts of the state; undefined removes a name from the address. Sliders replace the history entry.
export function setQuery(changes, options = { replace: true }) {
  const query = { ...Object.fromEntries(route.value.query), ...changes };
  go(address(route.value.path, query), options);
}

// "Skip to content": never part of an address.
const MAIN = "#main";

export function Link({ to, children, ...rest }) {
  function follow(event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    if (to === MAIN) showSection(to.slice(1));
    else go(to);
  }
  return html`<a href=${to === MAIN ? to : href(to)} onClick=${follow} ...${rest}>${children}</a>`;
}
