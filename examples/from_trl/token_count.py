"""Rows that are only prompts, and a reward that counts tokens. Written for TRL; the last statement is ours."""

from datasets import Dataset

import grpo

dataset = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(10, 30) for b in range(10, 30)])


def longer(completion_ids, **kwargs):
    """More tokens earn more."""
    return [float(len(ids)) for ids in completion_ids]


run = grpo.train(
    grpo.Config(model="nano", steps=10, prompts_per_step=8, group_size=4, max_new_tokens=32, lr=3e-4),
    reward=longer,
    data=dataset,
)
before, *_, after = run.summary()["eval"]
print(f"mean length: {before['reward_mean']:.1f} before, {after['reward_mean']:.1f} after {after['step']} steps")
