// Where nano's answers do not come: what happened, and another try.
import { html } from "htm/preact";
import { Failed } from "../parts.js";

// An answer in the address that nano cannot read is not a matter of loading.
export const Unloaded = ({ error }) => (error.message.startsWith("text: ") ? html`<${Failed} error=${error} />` : html`<${NotLoaded} error=${error} />`);

const NotLoaded = ({ error }) => html`<div class="failed" role="alert">
  <p><b>The model could not be loaded.</b> Reload the page.</p>
  <p class="soft small">${error.message}</p>
  <button type="button" onClick=${() => location.reload()}>Retry</button>
</div>`;
