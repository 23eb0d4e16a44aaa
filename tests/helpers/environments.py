"""Environments as people write them: TRL's form, the forms of `step`, and some that misbehave."""

import os
import random
import threading
import time
from collections import namedtuple
from dataclasses import dataclass


class IncrementEnv:
    """TRL's form: it makes its own tasks, and every public method but reset and get_reward is a tool."""

    def reset(self, **columns) -> str | None:
        self.count = 0
        self.target = columns.get("target") or random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.count == self.target)

    def increment(self, step: int) -> int:
        """
        Add to the counter.

        Args:
            step: What to add.

        Returns:
            The new count.
        """
        if step <= 0:
            raise ValueError("Only\nupwards.")
        self.count += step
        return self.count

    async def read(self) -> str:
        """
        Read the counter.

        Returns:
            The count.
        """
        return f"it is {self.count}"

    def _hidden(self) -> None: ...


class EchoEnv:
    """TRL's form without get_reward: reward functions read what it keeps."""

    def __init__(self):
        self.reward = 0.0
        self.client = threading.Lock()  # as a connection, it cannot be pickled

    def reset(self, **columns) -> str | None:
        self.reward = 0.0

    def echo(self, message: str) -> str:
        """
        Echo the message back.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        self.reward = len(message) / 100
        return message


def reward_func(environments, **kwargs):
    return [env.reward for env in environments]


async def patient(prompts, completions, environments, level, log_extra, log_metric, **kwargs):
    assert all(type(env) is EchoEnv for env in environments)
    log_extra("seen", completions)
    log_metric("prompts", sum(map(len, prompts)))
    return [each * len(completion) for each, completion in zip(level, completions)]  # noqa: B905


def too_many(environments):
    return [1.0, 2.0]


def of_tokens(environments, completion_ids):
    return [0.0]


class Sums:
    """Makes the problem, and asks a second sum whatever the answer to the first was."""

    def reset(self, **columns):
        self.sum, self.asked = (random.randint(10, 40), random.randint(10, 40)), 0
        return "{}+{}=".format(*self.sum)

    def step(self, text):
        self.asked += 1
        right = text.endswith(str(sum(self.sum)))
        self.sum = (self.sum[0], 11)
        return f"{self.sum[0]}+11=", float(right), self.asked == 2

    def get_reward(self):
        return 0.25


class Products(Sums):
    """Asks for products, and rewards nothing but the end."""

    def reset(self, **columns):
        return super().reset().replace("+", "*")

    def step(self, text):
        observation, _, done = super().step(text)
        return observation, 0.0, done


def half(environments, **columns):
    return [each.asked / 2 for each in environments]


@dataclass
class StepResult:
    observation: str
    reward: float | None = None
    done: bool = False


Backwards = namedtuple("Backwards", "done reward observations")


class Guess:
    """`step` reads the turn. The row says in which form it answers."""

    def reset(self, form="text", seed=0):
        self.form, self.secret, self.tries = form, seed % 15, 0
        return ("Guess.", {}) if form == "five" else None

    def step(self, text):
        guess, self.tries = int(text), self.tries + 1
        said = "found" if guess == self.secret else "higher" if guess < self.secret else "lower"
        reward, done = float(said == "found"), said == "found"
        message = {"role": "user", "content": said}
        return {
            "text": said,
            "three": (said, reward, done),
            "four": (said, reward, done, {}),
            "five": (said, reward, done, self.tries == 3, {}),
            "dict": {"observation": said, "reward": reward, "done": done},
            "object": StepResult(said, reward, done),
            "skyrl": {"observations": [message], "reward": reward, "done": done, "metadata": {}},
            "messages": {
                "next_messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}, message],
                "reward": reward,
                "episode_done": done,
            },
            "tuple": Backwards(done, reward, [message]),
            "number": len(said),
            "nothing": None,
            "bad": {said},
            "bad reward": (said, "much", False),
        }[self.form]


class AsyncEcho:
    """Async methods and a `close`, which leaves a note."""

    async def reset(self, note="", **columns):
        self.note, self.said = note, []

    async def step(self, text):
        self.said.append(text)
        return " ".join(self.said), 0.25, text == "stop"

    async def get_reward(self):
        return float(len(self.said))

    async def close(self):
        with open(self.note, "a") as file:
            file.write(f"closed after {self.said}\n")


class Unruly:
    """Misbehaves where the row says so, in reset, step or get_reward; a turn that names a fault does it in step."""

    def reset(self, at="", fault="", **columns):
        self.at, self.fault, self.turns = at, fault, []
        self._misbehave("reset")
        return f"{random.random():.6f}" if fault != "urandom" else os.urandom(4).hex()

    def step(self, text):
        self.turns.append(text)
        self._misbehave("step")
        if text in ("raise", "sleep", "exit"):
            self.fault, self.at = text, "now"
            self._misbehave("now")
        return f"{len(self.turns)} {text} {random.random():.6f}"

    def get_reward(self):
        self._misbehave("get_reward")
        return float(len(self.turns))

    def _misbehave(self, where):
        if where != self.at:
            return
        if self.fault == "raise":
            raise ValueError("no such luck")
        if self.fault == "sleep":
            time.sleep(3600)
        if self.fault == "exit":
            os._exit(3)


class OnceOnly(Unruly):
    repeatable = False


class Server:
    """Starts a process that serves the whole episode."""

    def reset(self, **columns):
        self.child = os.fork()
        if self.child == 0:
            time.sleep(3600)
        return str(self.child)

    def step(self, text):
        return f"{self.child} {os.waitpid(self.child, os.WNOHANG) == (0, 0)} {os.getpid()}"


class Bare:
    def reset(self): ...


class Sized(Bare):
    def __init__(self, size, *rest, level=1, **more): ...

    def step(self, text): ...


class WithoutReset:
    def step(self, text): ...


class Various:
    """Begins with another text each time."""

    begun = 0

    def reset(self, long=0):
        Various.begun += 1
        return f"game {Various.begun}" + "x" * long

    def step(self, text):
        return "on"


async def agent(client, row):
    return 0.0
