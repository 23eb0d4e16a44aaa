"""Trains nano to add, with a lambda as the reward and a list of dicts as the data."""

import random

import grpo

rng = random.Random(1)
sums = [[rng.randint(10, 99) for _ in range(3)] for _ in range(600)]
data = [{"prompt": "+".join(map(str, numbers)) + "=", "answer": str(sum(numbers))} for numbers in sums]

config = grpo.Config(model="nano", steps=40, lr=3e-4, max_new_tokens=32, evaluation={"every": 10, "problems": 50})
run = grpo.train(config, reward=lambda problem, text: float(text.endswith(problem.answer)), data=data)
for row in run.summary()["eval"]:
    print(f"after {row['step']:2} steps: mean reward {row['reward_mean']:.2f} on {config.evaluation.problems} new sums")
