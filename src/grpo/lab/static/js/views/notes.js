// Tags and note of a run, and the form that changes them. They are kept in notes.json beside the run's record.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { isStatic } from "../route.js";
import { Untrusted } from "../text.js";

const canEdit = (run) => !run.example && !isStatic();

export function Tags({ tags, chosen, onPick }) {
  return tags.map((tag) =>
    onPick
      ? html`<button type="button" class="tag ${tag === chosen ? "chosen" : ""}" aria-pressed=${tag === chosen}
        onClick=${() => onPick(tag === chosen ? undefined : tag)}>
        ${tag}</button>`
      : html`<span class="tag">${tag}</span>`,
  );
}

// What is written, with a button that opens the form.
export function Notes({ run, id, onSaved, onPick }) {
  const [open, setOpen] = useState(false);
  const [mine, setMine] = useState(null);
  const { tags, note } = mine ?? run;
  if (open) {
    const saved = (notes) => {
      setMine(notes);
      setOpen(false);
      onSaved?.();
    };
    return html`<${Form} id=${id} name=${run.name} tags=${tags} note=${note} onSaved=${saved} onCancel=${() => setOpen(false)} />`;
  }
  return html`<div class="notes">
    <${Tags} tags=${tags} onPick=${onPick} />
    ${note && html`<span class="note small soft"><${Untrusted} text=${note} /></span>`}
    ${run.notes_problem && html`<span class="small warn">${run.notes_problem}</span>`}
    ${canEdit({ ...run, example: id.startsWith("~") }) && !run.notes_problem && html`<button type="button" class="edit tiny" onClick=${() => setOpen(true)}>
      ${tags.length || note ? "Edit" : "Add a note"}<span class="visually-hidden"> of ${run.name}</span></button>`}
  </div>`;
}

function Form({ id, name, tags, note, onSaved, onCancel }) {
  const [labels, setLabels] = useState(tags.join(", "));
  const [text, setText] = useState(note);
  const [problem, setProblem] = useState(null);
  async function save(event) {
    event.preventDefault();
    const split = labels.split(",").map((tag) => tag.trim()).filter(Boolean);
    try {
      onSaved(await post(`/api/runs/${encodeURIComponent(id)}/notes`, { tags: split, note: text }));
    } catch (error) {
      setProblem(error.message);
    }
  }
  return html`<form class="notes-form" onSubmit=${save} onKeyDown=${(event) => event.key === "Escape" && onCancel()}>
    <label class="small soft">Tags, with commas
      between <input type="text" value=${labels} onInput=${(event) => setLabels(event.target.value)}
        ref=${(box) => box && !box.dataset.seen && ((box.dataset.seen = "1"), box.focus())} />
    </label>
    <label class="small soft">Note <textarea rows="2" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    <div class="row"><button type="submit" class="primary">Save<span class="visually-hidden"> notes of ${name}</span></button>
      <button type="button" onClick=${onCancel}>Cancel</button></div>
    ${problem && html`<p class="small warn" role="alert">${problem}</p>`}
  </form>`;
}
