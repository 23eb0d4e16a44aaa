"""A task that answers each turn by what the turn says, well or badly. Loaded by workers as people's files are."""

import os
import random
import time

from grpo import Problem


class Talkative:
    name = "talkative"

    def draw(self, step, count, seed):
        return [Problem(f"train/{step}/{i}", "ask: ", "42") for i in range(count)]

    def heldout(self):
        return [Problem("heldout", "ask: ", "42")]

    def score(self, problem, text):
        return {"correct": float(text == problem.answer)}

    def episode_traits(self, problem, turns):
        return {"turns": float(len(turns))}

    def reply(self, problem, turns):
        text = turns[-1]
        if text == "raise":
            raise ValueError("no such luck")
        if text == "sleep":
            time.sleep(3600)
        if text == "exit":
            os._exit(3)
        if text == "shout":
            print("x" * 100_000_000)
        if text == "long":
            return "y" * 100_000_000
        if text == "number":
            return 42
        if text == "dice":
            return f"{random.random():.6f};"
        return f"{len(turns)}{text};" if text != "42" else None
