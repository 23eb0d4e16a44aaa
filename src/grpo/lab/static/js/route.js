// The route: the whole state of a view is in the address, so that any view can be linked.
import { signal } from "@preact/signals";
import { html } from "htm/preact";

function here() {
  return { path: location.pathname.replace(/\/+$/, "") || "/", query: new URLSearchParams(location.search) };
}

export const route = signal(here());
addEventListener("popstate", () => (route.value = here()));

export function address(path, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export function go(to, { replace = false } = {}) {
  if (to === location.pathname + location.search) return;
  const pathChanges = to.split("?")[0] !== location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  route.value = here();
  if (pathChanges) scrollTo(0, 0);
}

// Changes parts of the state; undefined removes a name from the address. Sliders replace the history entry.
export function setQuery(changes, options = { replace: true }) {
  const query = { ...Object.fromEntries(route.value.query), ...changes };
  go(address(route.value.path, query), options);
}

export function Link({ to, children, ...rest }) {
  function follow(event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  }
  return html`<a href=${to} onClick=${follow} ...${rest}>${children}</a>`;
}
