// The worker that holds nano. Messages in: {open: files}, then {id, part, call, settings}; out: {id, value}, {id, progress}
// or {id, error}.
import { answer, open } from "./calls.js";

addEventListener("message", async ({ data }) => {
  if (data.open) return open(data.open);
  const { id, part, call, settings } = data;
  try {
    postMessage({ id, value: await answer(part, call, settings, (progress) => postMessage({ id, progress })) });
  } catch (error) {
    // border: texts that a reader typed may not be in nano's alphabet; the page shows the message
    postMessage({ id, error: error.message });
  }
});
