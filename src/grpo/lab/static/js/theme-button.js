// The button that turns the page light or dark; theme.js applies the choice at the next load.
import { html } from "htm/preact";
import { useState } from "preact/hooks";

export function ThemeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const [isDark, setDark] = useState(dark());
  function turn() {
    const theme = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    setDark(!isDark);
  }
  return html`<button type="button" class="quiet" onClick=${turn} aria-label=${isDark ? "Light theme" : "Dark theme"}>${isDark ? "☀" : "☾"}</button>`;
}
