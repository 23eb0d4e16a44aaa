"""Agents that bring their own loop: a coroutine that asks the model through a client shaped like `openai.AsyncOpenAI`.

    async def agent(client, row):
        messages = [{"role": "user", "content": row["question"]}]
        reply = await client.chat.completions.create(messages=messages)
        return float(row["answer"] in reply.choices[0].message.content)

A loop is an environment turned inside out. `reset` runs it until it asks the model; `step` answers its request and runs
it until it asks again, or returns its reward. What it asks beyond the model's last turn is what the model reads.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine
from typing import Any

from grpo.episodes.client import AgentError, Client, Messages
from grpo.episodes.environments import Kind, Step, checked_reward, part_name, row_of
from grpo.errors import GrpoError
from grpo.tasks.conversation import read_messages
from grpo.types import Problem

Agent = Callable[[Any, dict[str, Any]], Coroutine[Any, Any, Any]]


def agent_kind(agent: Agent, text: str) -> Kind:
    """The agent as a class of environments, whose texts are JSON of messages."""
    title, name = f"environment {text}", part_name(text)
    taken = inspect.signature(agent).parameters.values()
    if sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in taken) < 2:
        raise GrpoError(f"{title}: {name} is a coroutine, so it is an agent; write async def {name}(client, row)")
    return Kind(title, name, lambda: Loop(agent), repeatable=bool(getattr(agent, "repeatable", True)), messages=True)


class Loop:
    """One episode of an agent, as an `Environment`."""

    def __init__(self, agent: Agent):
        self.agent, self.client = agent, Client()
        self.loop = asyncio.new_event_loop()
        self.task: asyncio.Task[Any] | None = None

    def reset(self, problem: Problem, seed: int) -> str:
        """The messages and tools of the agent's first request: the prompt."""
        self.task = self.loop.create_task(self.agent(self.client, row_of(problem)))
        messages = self._run()
        if messages is None:
            raise AgentError("the agent returned before it asked the model")
        return json.dumps({"messages": messages, "tools": self.client.conversation.tools})

    def step(self, text: str) -> Step:
        """`text`: JSON of the model's turn, with `content` and `tool_calls`."""
        self.client.answer(json.loads(text))
        messages = self._run()
        return Step(None, done=True) if messages is None else Step(json.dumps(messages))

    def reward(self) -> float | None:
        """What the agent returned; 0 where a limit ended the episode before."""
        if self.task is None or not self.task.done():
            return 0.0
        value = self.task.result()
        return None if value is None else checked_reward(value, "the agent")

    def close(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self.loop.run_until_complete(asyncio.wait({self.task}))
        self.loop.close()

    def _run(self) -> Messages | None:
        """Runs the agent until it asks the model; None: it has returned. Raises what it raises."""
        return self.loop.run_until_complete(self._next())

    async def _next(self) -> Messages | None:
        assert self.task is not None
        asked = asyncio.ensure_future(self.client.asked.get())
        await asyncio.wait({self.task, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            self.task.result()
            return None
        request = asked.result()
        if isinstance(request, AgentError):
            raise request
        return read_messages(request, "the agent's request")
