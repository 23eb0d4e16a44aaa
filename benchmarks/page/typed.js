// Typed arrays: the shipped code, or a variant of it that the server made (float64, or products in WebAssembly).
export async function make({ student, groups, slopes }, variant) {
  const [{ logitSlopes, readGroups }, { backward }] = await Promise.all(["logprobs", "model"].map((name) => import(`/${variant}/js/nano/${name}.js`)));
  const { ready } = await import(`/${variant}/js/nano/matmul.js`);
  await ready;
  const batch = groups.map(({ prompt, completions }) => ({ prompt, completions: completions.map(({ ids }) => ids) }));
  return async () => {
    const gradient = student.model.weights.zeros();
    const { tape, completions, logp_NV } = readGroups(student.model, batch);
    backward(student.model.weights, tape, logitSlopes(completions, slopes, logp_NV), gradient);
    return gradient.flat;
  };
}
