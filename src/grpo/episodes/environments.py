"""Environments: the classes that people write, behind one small protocol.

    class Counter:                                          # TRL's form: public methods are tools
        def reset(self, **columns) -> str | None: ...       # its text is added to the prompt
        def increment(self, step: int) -> int: ...          # types and a docstring, as for a tool
        def get_reward(self) -> float: ...

    class Guess:                                            # `step` reads the model's turn
        def reset(self, seed): ...
        def step(self, text): ...                           # a text, (observation, reward, done), Gymnasium's five, …

One object plays one episode. Methods may be async.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from grpo.episodes.answers import readable
from grpo.episodes.calls import result_of
from grpo.errors import GrpoError, one_line
from grpo.rewards.functions import awaited
from grpo.rewards.place import Place
from grpo.rewards.pool.invoke import as_number
from grpo.rewards.signature import columns_of
from grpo.types import Problem

NOT_TOOLS = ("reset", "get_reward", "close")
OBSERVATION = ("observation", "observations", "next_observation", "next_messages")
DONE = ("done", "terminated", "truncated", "episode_done")
FORMS = "return a text, (observation, reward, done), Gymnasium's five values, or an object with these names"


class Step(NamedTuple):
    """What an environment answers to a turn."""

    text: str | None
    """What the model reads next; where the episode is over, the environment's last words."""
    reward: float | None = None
    """Of this turn."""
    done: bool = False


class Environment(Protocol):
    """One episode of an environment."""

    def reset(self, problem: Problem, seed: int) -> str | None:
        """Begins; the text, if any, is what the model reads first."""
        ...

    def step(self, text: str) -> Step: ...

    def reward(self) -> float | None:
        """Of the episode, in addition to those of its turns; None where it has none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Kind:
    """A class of environments.

    >>> class Counter:
    ...     def reset(self, target, **columns): self.count = 0
    ...     def increment(self, step: int) -> int: ...
    ...     def get_reward(self): ...
    >>> kind = Kind.of(Counter, "counter.py:Counter")
    >>> kind.name, [tool.__name__ for tool in kind.tools], kind.required, kind.repeatable
    ('Counter', ['increment'], ('target',), True)
    """

    title: str
    """For messages, such as "environment counter.py:Counter"."""
    name: str
    """Of the part of the reward that it gives."""
    make: Callable[[], Environment]
    tools: tuple[Callable[..., Any], ...] = ()
    """Methods that the model calls; empty where `step` reads its turns."""
    required: tuple[str, ...] = ()
    """Columns that the data must have."""
    repeatable: bool = True
    """Whether the same turns give the same answers, so that a lost episode can be played again."""
    may_reward: bool = True
    """Whether it can: a class of tools needs `get_reward`."""
    messages: bool = False
    """Whether it is an agent with a loop of its own (loop.py): its texts are JSON of messages."""

    @classmethod
    def of(cls, env: type, text: str) -> Kind:
        title, name = f"environment {text}", part_name(text)
        reset = getattr(env, "reset", None)
        if not callable(reset):
            raise GrpoError(f"{title}: {name} has no method reset; add reset(self, **columns), which begins an episode")
        _check_made_alone(env, title)
        required = tuple(
            each.name
            for each in list(inspect.signature(reset).parameters.values())[1:]
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            if each.name not in ("seed", "prompt")
        )
        repeatable = bool(getattr(env, "repeatable", True))
        if callable(getattr(env, "step", None)):
            return cls(title, name, lambda: Played(env()), (), required, repeatable)
        tools = tools_of(object.__new__(env))
        if not tools:
            raise GrpoError(
                f"{title}: {name} has neither a method step(text) nor other public methods, which would be tools; add "
                "one of them"
            )
        may_reward = hasattr(env, "get_reward")
        return cls(title, name, lambda: Played(env()), tuple(tools.values()), required, repeatable, may_reward)

    def check_columns(self, problems: Iterable[Problem]) -> None:
        """Raises GrpoError where `reset` takes a column that no problem has."""
        known = dict.fromkeys(name for problem in problems for name in columns_of(problem))
        if unknown := [name for name in self.required if name not in known]:
            columns = f"the columns are {', '.join(known)}" if known else "the data has no columns"
            raise GrpoError(
                f"{self.title}: reset takes {unknown[0]!r}, which is not a column of the data; {columns}; rename the "
                "parameter, or give it a default"
            )

    def check_rewards(self) -> None:
        """Raises GrpoError where it cannot give a reward, and nothing else does."""
        if not self.may_reward:
            raise GrpoError(
                f"{self.title}: {self.name} has no method get_reward, so episodes earn nothing; add it, or name a "
                "reward with --reward, such as task"
            )


def _check_made_alone(env: type, title: str) -> None:
    """Refuses a class whose objects are made with arguments."""
    try:
        parameters = inspect.signature(env).parameters.values()
    except ValueError:  # border: a class of a C extension need not say what it takes
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if taken := [each.name for each in parameters if each.default is each.empty and each.kind not in optional]:
        raise GrpoError(
            f"{title}: {env.__name__} takes {taken[0]!r} when it is made, and it is made without arguments; give it a "
            "default, or take it in reset, from a column of the data"
        )


def part_name(text: str) -> str:
    """Name of the reward that an environment gives.

    >>> part_name("games.py:Word"), part_name("python:Catch")
    ('Word', 'Catch')
    """
    return text.rpartition(":")[2].strip()


def load_environment(env: str | type | Callable[..., Any]) -> Kind:
    """What a text such as file.py:Class or module:Class names, or what was handed over: a class, or the coroutine
    function of an agent."""
    found, text = (Place.parse(env, "environment").load(), env) if isinstance(env, str) else (env, env.__name__)
    if inspect.iscoroutinefunction(found):
        from grpo.episodes.loop import agent_kind  # imports this module

        return agent_kind(found, text)
    if not isinstance(found, type):
        raise GrpoError(
            f"environment {text}: is not a class but a {type(found).__name__}; name a class, or an agent (async def)"
        )
    return Kind.of(found, text)


def row_of(problem: Problem) -> dict[str, Any]:
    """The row of data that environments and agents get: its columns, and the prompt as messages or text."""
    prompt = [dict(each) for each in problem.messages] if problem.conversational else problem.prompt
    return {"prompt": prompt, **columns_of(problem)}


def with_text(problem: Problem, text: str) -> Problem:
    """The problem with a text added to its prompt: to the last message of the user, as in TRL.

    >>> from grpo.types import chat
    >>> asked = with_text(Problem("p", "Count.", "", messages=chat("Count.")), " Up to 3.")
    >>> asked.prompt, asked.messages
    ('Count. Up to 3.', ({'role': 'user', 'content': 'Count. Up to 3.'},))
    >>> parts = [{"type": "text", "text": "Count."}]
    >>> with_text(Problem("p", "Count.", "", messages=chat(parts)), " Up to 3.").messages[0]["content"][1:]
    [{'type': 'text', 'text': ' Up to 3.'}]
    """
    messages = [dict(message) for message in problem.messages]
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            message["content"] = content + ([{"type": "text", "text": text}] if isinstance(content, list) else text)
            break
    return replace(problem, prompt=problem.prompt + text, messages=tuple(messages)) if text else problem


def seed_of(problem: Problem) -> int:
    """The seed that `reset` is given: the same for all completions of a problem, so that they begin alike."""
    return int.from_bytes(sha256(problem.id.encode()).digest()[:4], "little")


def tools_of(made: Any) -> dict[str, Callable[..., Any]]:
    """The methods of an object in TRL's form that are tools, by name."""
    functions = inspect.getmembers(type(made), inspect.isfunction)
    return {name: getattr(made, name) for name, _ in functions if name[0] != "_" and name not in NOT_TOOLS}


class Played:
    """An object of people's class, as an `Environment`.

    Where its methods are tools, its turns are tool calls: JSON in, JSON out.

    >>> class Counter:
    ...     count = 0
    ...     def increment(self, step: int) -> int:
    ...         self.count += step
    ...         return self.count
    >>> Played(Counter()).step('[{"name": "increment", "arguments": {"step": 3}}]').text
    '[{"answer": "3", "fault": ""}]'
    """

    def __init__(self, made: Any):
        self.made = made

    def reset(self, problem: Problem, seed: int) -> str | None:
        row = row_of(problem)
        taken = inspect.signature(self.made.reset).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            row = {name: value for name, value in row.items() if name in taken}
        if "seed" in taken:
            row.setdefault("seed", seed)
        return first_text(awaited(self.made.reset(**row)))

    def step(self, text: str) -> Step:
        if hasattr(self.made, "step"):
            return read_step(awaited(self.made.step(text)))
        return Step(json.dumps([self._answer(call) for call in json.loads(text)]))

    def _answer(self, call: Mapping[str, Any]) -> dict[str, str]:
        text, fault = result_of(tools_of(self.made)[call["name"]], call["arguments"])
        return {"answer": readable(text), "fault": fault}

    def reward(self) -> float | None:
        """That of `get_reward`."""
        value = awaited(self.made.get_reward()) if hasattr(self.made, "get_reward") else None
        return None if value is None else checked_reward(value, "get_reward")

    def close(self) -> None:
        if hasattr(self.made, "close"):
            awaited(self.made.close())


def first_text(result: Any) -> str | None:
    """What `reset` returned: a text or None, (observation, info) as in Gymnasium, or an object with an observation.

    >>> first_text(("Guess a number.", {})), first_text({"observation": "Guess."}), first_text(None)
    ('Guess a number.', 'Guess.', None)
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        result = result[0]
    names = _names(result)
    if name := next((name for name in OBSERVATION if name in names), None):
        result = names[name]
    return as_text(result, "reset", "return a text, None, or (observation, info)")


def read_step(result: Any) -> Step:
    """What `step` returned, in any of its forms.

    >>> read_step("higher"), read_step(("lower", 0.5, False))
    (Step(text='higher', reward=None, done=False), Step(text='lower', reward=0.5, done=False))
    >>> read_step(("won", 1, True, False, {}))
    Step(text='won', reward=1.0, done=True)
    >>> messages = [{"role": "assistant", "content": "7"}, {"role": "user", "content": "higher"}]
    >>> read_step({"next_messages": messages, "reward": 0.0, "episode_done": False})
    Step(text='higher', reward=0.0, done=False)
    >>> read_step(None)
    Step(text=None, reward=None, done=True)
    """
    reward: Any = None
    done: Any = result is None
    names = _names(result)
    if name := next((name for name in OBSERVATION if name in names), None):
        reward, done = names.get("reward"), any(names.get(each) for each in DONE)
        result = names[name]
    elif isinstance(result, tuple) and len(result) in (3, 4, 5):  # 4: observation, reward, done, info
        reward, done = result[1], result[2] or (len(result) == 5 and result[3])
        result = result[0]
    text = as_text(result, "step", FORMS)
    return Step(text, None if reward is None else checked_reward(reward, "step"), bool(done) or text is None)


def _names(result: Any) -> Mapping[str, Any]:
    """The named values of a mapping, a named tuple or an object."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, str | bytes | int | float | list | None) or type(result) is tuple:
        return {}
    return {name: getattr(result, name) for name in (*OBSERVATION, *DONE, "reward") if hasattr(result, name)}


def as_text(observation: Any, method: str, forms: str) -> str | None:
    """An observation as text: a text, a number, or the messages after the model's last turn."""
    if observation is None:
        return None
    if isinstance(observation, str | int | float):
        return readable(str(observation))
    if isinstance(observation, list):
        texts: list[str] = []
        for each in observation:
            if isinstance(each, Mapping) and each.get("role") == "assistant":
                texts = []
                continue
            content = each.get("content", each.get("text")) if isinstance(each, Mapping) else each
            if not isinstance(content, str):
                break
            texts.append(content)
        else:
            return readable("\n".join(texts))
    raise GrpoError(f"{method} returned {one_line(repr(observation), 200)} as observation; {forms}")


def checked_reward(value: Any, method: str) -> float:
    number = as_number(value)
    if number is None:
        raise GrpoError(f"{method} returned the reward {one_line(repr(value), 200)}; return a finite number")
    return number
