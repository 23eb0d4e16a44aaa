// Floating-point operations of a step on a GPU by phase: grpo.model.plan.compute in JavaScript, tested against it.
const [BACKWARD, ATTENTION_BACKWARD] = [2, 2.5];

// `needs`: { reference, critic }.
export function flops(shape, work, needs) {
  const { prompts, promptTokens, newTokens, completions } = work;
  const completionTokens = completions * newTokens;
  const tokens = prompts * promptTokens + completionTokens;
  const pairs = (prompts * (promptTokens * (promptTokens + 1))) / 2 + completions * (newTokens * promptTokens + (newTokens * (newTokens + 1)) / 2);
  const body = (count) => 2 * shape.linear * count;
  const head = 2 * shape.embedding;
  const attention = 4 * shape.layers * shape.queryWidth * pairs;
  const pass = (1 + BACKWARD) * body(tokens) + (1 + ATTENTION_BACKWARD) * attention;
  return {
    rollout: body(tokens - completions) + attention + (completionTokens - completions + prompts) * head,
    "old policy": 0,
    reference: needs.reference ? body(tokens) + attention + completionTokens * head : 0,
    critic: needs.critic ? body(tokens) + attention : 0,
    "reward model": 0,
    update: pass + (1 + BACKWARD) * completionTokens * head + (needs.critic ? pass : 0),
  };
}
