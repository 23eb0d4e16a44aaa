"""Conversations with a column ground_truth, and two rewards: the format and the answer. Written for TRL."""

import re

from datasets import Dataset

import grpo

sums = [(a, b) for a in range(10, 30) for b in range(10, 30)]
dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"{a}+{b}+11="}], "ground_truth": str(a + b + 11)} for a, b in sums]
)


def worked(completions, **kwargs):
    """1 for working in parentheses, then a number."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^\(.*?\)\d+$", content) else 0.0 for content in contents]


def correct(completions, ground_truth, **kwargs):
    """1 for the right number at the end."""
    found = [re.search(r"\d+$", completion[0]["content"]) for completion in completions]
    return [1.0 if match and match[0] == gold else 0.0 for match, gold in zip(found, ground_truth, strict=True)]


run = grpo.train(
    grpo.Config(model="nano", steps=10, prompts_per_step=8, group_size=4, max_new_tokens=32, lr=3e-4),
    reward=[(worked, 0.2), correct],
    data=dataset,
)
before, *_, after = run.summary()["eval"]
print(f"mean reward: {before['reward_mean']:.2f} before, {after['reward_mean']:.2f} after {after['step']} steps")
