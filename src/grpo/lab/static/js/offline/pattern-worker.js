// Tries a regular expression on the texts of each row; the page ends this worker when that takes too long.
self.onmessage = ({ data: { pattern, rows } }) => {
  const compiled = new RegExp(pattern, "iu");
  self.postMessage(rows.map((texts) => texts.some((text) => compiled.test(text))));
};
self.postMessage("ready");
