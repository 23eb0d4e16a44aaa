// One run as one file: its views, and a header that says where they come from. Written by `grpo lab export`.
import { render } from "preact";
import { html } from "htm/preact";
import { useEffect } from "preact/hooks";
import { plural, runName } from "./format.js";
import { Link, route } from "./route.js";
import { ThemeButton } from "./theme-button.js";
import { RunPage } from "./views/run.js";

const { run, icon, exported, version, steps, groups } = window.grpoExport;

function Exported() {
  const { path, query } = route.value;
  useEffect(() => {
    const heading = document.querySelector("h1")?.textContent;
    document.title = heading ? `${heading} · grpo lab` : "grpo lab";
  });
  const [, , view = "overview"] = path.split("/").filter(Boolean);
  return html`<${Link} to="#main" class="skip">Skip to content<//>
    <header class="top">
      <${Link} to=${`/runs/${encodeURIComponent(run)}`} class="brand"><img src=${icon} alt="" width="22" height="22" /> <span>grpo lab</span><//>
      <p class="exported small soft">Run <b>${runName(run)}</b>, exported ${exported.slice(0, 16).replace("T", " ")} UTC by
        grpo ${version}.${steps && html` The file has ${plural(steps.length, "step")} of the
          run${groups ? ` and at most ${plural(groups, "group")} of each` : ""}; charts of the whole run have all.`}
      </p>
      <${ThemeButton} />
    </header>
    <${RunPage} id=${run} view=${view} query=${query} />`;
}

render(html`<${Exported} />`, document.getElementById("app"));
