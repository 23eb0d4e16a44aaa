"""Rows of two tasks, each with its own reward, one of them async; None means: not my task. Written for TRL."""

import asyncio

from datasets import Dataset

import grpo

pairs = [(a, b) for a in range(10, 30) for b in range(10, 30)]
dataset = Dataset.from_list(
    [{"prompt": f"{a}+{b}+11=", "task": "sum", "solution": str(a + b + 11)} for a, b in pairs]
    + [{"prompt": f"{a}*{b}=", "task": "product", "solution": str(a * b)} for a, b in pairs]
)


async def asked(completion, solution):
    """Stands for a request to a server."""
    await asyncio.sleep(0)
    return 1.0 if completion.endswith(solution) else 0.0


def right_sum(completions, solution, task, **kwargs):
    """1 for the right number at the end."""
    return [
        float(completion.endswith(gold)) if kind == "sum" else None
        for completion, gold, kind in zip(completions, solution, task, strict=True)
    ]


async def right_product(completions, solution, task, **kwargs):
    """The answers of a group are judged at the same time."""

    async def judged(completion, gold, kind):
        return await asked(completion, gold) if kind == "product" else None

    return await asyncio.gather(*map(judged, completions, solution, task))


run = grpo.train(
    grpo.Config(model="nano", steps=10, prompts_per_step=8, group_size=4, max_new_tokens=32, lr=3e-4),
    reward=[right_sum, right_product],
    data=dataset,
)
before, *_, after = run.summary()["eval"]
print(f"mean reward: {before['reward_mean']:.2f} before, {after['reward_mean']:.2f} after {after['step']} steps")
