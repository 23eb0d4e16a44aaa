// The worker that holds nano. Messages: {id, call, settings} in; {id, value}, {id, progress} or {id, error} out.
import { CALLS } from "./calls.js";

addEventListener("message", async ({ data: { id, call, settings } }) => {
  try {
    postMessage({ id, value: await CALLS[call](settings, (progress) => postMessage({ id, progress })) });
  } catch (error) {
    // border: texts that a reader typed may not be in nano's alphabet; the page shows the message
    postMessage({ id, error: error.message });
  }
});
