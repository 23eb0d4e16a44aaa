"""Agents that bring their own loop: what they ask, what they get, and requests that do not extend the last one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import grpo
from grpo.config import Episodes as Settings
from grpo.config import Scoring
from grpo.episodes.answers import Answers, Episode
from grpo.episodes.client import AgentError, ChatMessage
from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.episodes.environments import load_environment
from grpo.episodes.loop import Agent, Loop, agent_kind
from grpo.episodes.play import Episodes
from grpo.errors import GrpoError
from grpo.model.prompt import prompt_tokens
from grpo.rewards.pool.confine import Limits
from grpo.rollout.protocol import Ended
from grpo.types import Observation, Problem
from helpers.chats import chat_policy
from helpers.player import SAMPLING, begin, play_through
from helpers.runs import small

PROBLEM = Problem("p", "6*7?", "42", columns={"level": 3})
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "multiply", "parameters": NUMBERS}}]


def turn(content: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """A turn of the model, as the trainer sends it."""
    return json.dumps({"content": content, "tool_calls": [{"name": name, "arguments": each} for name, each in calls]})


@contextmanager
def playing(agent: Agent) -> Iterator[Loop]:
    loop = Loop(agent)
    try:
        yield loop
    finally:
        loop.close()


def test_a_loop_with_a_tool_call() -> None:
    """As agents are written: the model's message goes into the next request, then the answers of its tools."""

    async def agent(client: Any, row: dict[str, Any]) -> float:
        messages: list[Any] = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": row["prompt"]}]
        while True:
            reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS, temperature=0.2)
            [choice] = reply.choices
            messages.append(choice.message)
            if choice.finish_reason == "stop":
                return float(row["answer"] in choice.message.content) + row["level"]
            for call in choice.message.tool_calls:
                a, b = json.loads(call.function.arguments).values()
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(a * b)})

    with playing(agent) as loop:
        asked = json.loads(loop.reset(PROBLEM, seed=1))
        assert [message["role"] for message in asked["messages"]] == ["system", "user"]
        assert asked["messages"][1]["content"] == "6*7?"
        assert asked["tools"] == TOOLS
        read, reward, done = loop.step(turn("Let me see.", ("multiply", {"a": 6, "b": 7})))
        assert json.loads(read or "") == [{"role": "tool", "content": "42", "tool_call_id": "call_0_0"}]
        assert (reward, done) == (None, False)
        assert loop.step(turn("It is 42.")) == (None, None, True)
        assert loop.reward() == 4.0


def test_messages_may_come_back_as_dictionaries_and_stripped() -> None:
    async def agent(client: Any, row: dict[str, Any]) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "6*7?"}]}]
        reply = await client.chat.completions.create(messages=messages)
        messages.append(reply.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": "Sure?"})
        reply = await client.chat.completions.create(messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content.strip()})
        messages.append({"role": "user", "content": "Really?"})
        await client.chat.completions.create(messages=messages)

    with playing(agent) as loop:
        assert json.loads(loop.reset(PROBLEM, seed=1))["messages"] == [{"role": "user", "content": "6*7?"}]
        assert json.loads(loop.step(turn("42")).text or "") == [{"role": "user", "content": "Sure?"}]
        assert json.loads(loop.step(turn(" Yes.\n")).text or "") == [{"role": "user", "content": "Really?"}]
        assert loop.step(turn("Yes!")) == (None, None, True)
        assert loop.reward() is None, "it leaves the reward to reward functions"


USER, OTHER = {"role": "user", "content": "6*7?"}, {"role": "user", "content": "Now?"}
SAID = ChatMessage("42")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ([OTHER], "message 1 of the request has changed since the last one: .*Now.* in place of .*6\\*7"),
        ([USER, {"role": "assistant", "content": "41"}, OTHER], "message 2 of the request has changed"),
        ([USER, SAID], "the request has no new message after the model's turn"),
        ([USER], "the request has no new message"),
        ([USER, SAID, OTHER, SAID, OTHER], "the request adds messages of assistant and user; add the answers of all"),
        ([USER, SAID, {"role": "tool", "content": "42"}], "the request answers 1 calls of tools, and the model made 0"),
    ],
)
def test_a_request_that_does_not_extend_the_last_one_ends_the_episode(request_: list[Any], why: str) -> None:
    async def agent(client: Any, row: dict[str, Any]) -> float:
        await client.chat.completions.create(messages=[USER])
        try:
            await client.chat.completions.create(messages=request_)
        except Exception:  # noqa: BLE001  an agent that would go on after anything
            return 1.0
        return 1.0

    with playing(agent) as loop:
        loop.reset(PROBLEM, seed=1)
        with pytest.raises(AgentError, match=why):
            loop.step(turn("42"))


def test_other_requests_that_end_the_episode() -> None:
    def ended(first: dict[str, Any], second: dict[str, Any] | None = None) -> str:
        async def agent(client: Any, row: dict[str, Any]) -> None:
            requests = [client.chat.completions.create(**each) for each in (first, second) if each]
            await asyncio.gather(*requests)

        with playing(agent) as loop:
            try:
                loop.reset(PROBLEM, seed=1)
                loop.step(turn("42"))
            except AgentError as error:
                return str(error)
        return ""

    assert ended({"messages": [USER], "n": 2}) == "the request wants 2 choices; ask for one choice, not streamed"
    assert ended({"messages": [USER], "stream": True}).startswith("the request wants a stream")
    assert ended({"messages": []}) == "the first request has no messages"
    asked_twice = "the agent asks again before its last request was answered"
    assert ended({"messages": [USER]}, {"messages": [USER]}) == asked_twice


def test_other_tools_than_before_end_the_episode() -> None:
    async def agent(client: Any, row: dict[str, Any]) -> None:
        reply = await client.chat.completions.create(messages=[USER], tools=TOOLS)
        await client.chat.completions.create(messages=[USER, reply.choices[0].message, OTHER])

    with playing(agent) as loop:
        loop.reset(PROBLEM, seed=1)
        with pytest.raises(AgentError, match="the request has other tools than the first one"):
            loop.step(turn("42"))


def test_an_agent_that_raises_never_asks_or_returns_no_number() -> None:
    async def raises(client: Any, row: dict[str, Any]) -> None:
        await client.chat.completions.create(messages=[USER])
        raise KeyError("gone")

    async def silent(client: Any, row: dict[str, Any]) -> float:
        return 1.0

    async def text(client: Any, row: dict[str, Any]) -> str:
        await client.chat.completions.create(messages=[USER])
        return "good"

    with playing(raises) as loop:
        loop.reset(PROBLEM, seed=1)
        with pytest.raises(KeyError, match="gone"):
            loop.step(turn("42"))
    with playing(silent) as loop, pytest.raises(AgentError, match="returned before it asked the model"):
        loop.reset(PROBLEM, seed=1)
    with playing(text) as loop:
        loop.reset(PROBLEM, seed=1)
        loop.step(turn("42"))
        with pytest.raises(GrpoError, match="the agent returned the reward 'good'; return a finite number"):
            loop.reward()


def test_a_limit_earns_nothing_and_the_agent_may_clean_up() -> None:
    cleaned = []

    async def agent(client: Any, row: dict[str, Any]) -> float:
        try:
            await client.chat.completions.create(messages=[USER])
        finally:
            cleaned.append(row["answer"])
        return 1.0

    with playing(agent) as loop:
        loop.reset(PROBLEM, seed=1)
        assert loop.reward() == 0.0
        assert not cleaned
    assert cleaned == ["42"]


def test_a_coroutine_function_is_named_as_an_environment(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "async def agent(client, row):\n"
        "    await client.chat.completions.create(messages=[{'role': 'user', 'content': row['prompt']}])\n"
        "    return 1\n"
    )
    kind = load_environment(f"{file}:agent")
    assert (kind.name, kind.messages, kind.tools, kind.repeatable) == ("agent", True, (), True)

    async def alone(client: Any) -> None: ...

    with pytest.raises(GrpoError, match=r"environment mine.py:alone: alone is a coroutine, .* alone\(client, row"):
        agent_kind(alone, "mine.py:alone")  # type: ignore[arg-type]


SURE = {"role": "user", "content": "Sure?"}


async def checked(client: Any, row: dict[str, Any]) -> float:
    """Multiplies for the model, and asks once whether it is sure."""
    messages: list[Any] = [{"role": "user", "content": f"What is {row['prompt']}"}]
    while True:
        reply = await client.chat.completions.create(messages=messages, tools=TOOLS)
        said = reply.choices[0].message
        messages.append(said)
        for call in said.tool_calls or ():
            a, b = json.loads(call.function.arguments).values()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(a * b)})
        if said.content == "forget it":
            messages = [{"role": "user", "content": "Summary."}, {"role": "user", "content": "Go on."}]
        elif not said.tool_calls:
            if any(message == SURE for message in messages):
                return float(said.content == row["answer"])
            messages.append(SURE)


def call(a: int, b: int) -> str:
    return f'<tool_call>{{"name": "multiply", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


def test_an_agents_episodes_are_played_as_any_others() -> None:
    """By hand: what the model reads, the calls that are recorded, and the reward of the agent."""
    answers = Answers(EnvironmentReplies(checked), Limits(), in_process=True)
    play = begin(answers, [PROBLEM], group_size=4)
    assert [problem.prompt for problem in play.problems] == ["What is 6*7?"]
    assert play.problems[0].tools == tuple(TOOLS)
    assert play.opening() == {}
    unreadable = call(6, 7).replace("7", "x")
    scripts = [[call(6, 7) + call(2, 3), "42", "42"], ["41", "forget it"], ["41", "cut"], [unreadable, "42", "42"]]
    heard = play_through(play, scripts, cut={"cut": "length"})
    read = [[each.text for each in row if isinstance(each, Observation)] for row in heard]
    assert read == [["42\n6", "Sure?"], ["Sure?"], ["Sure?"], ["Sure?"]]
    first = heard[0][0]
    assert isinstance(first, Observation)
    assert [(each.name, each.answer, each.fault) for each in first.calls] == [
        ("multiply", "42", ""),
        ("multiply", "6", ""),
    ]
    ends = [row[-1] for row in heard]
    assert all(isinstance(end, Ended) for end in ends)
    right, forgot, cut, unread = (end for end in ends if isinstance(end, Ended))
    assert (right.finish, right.fault, dict(right.parts)) == ("stop", "", {"checked": 1.0})
    assert (forgot.fault, forgot.why) == (
        "failure",
        'message 1 of the request has changed since the last one: {"role": "user", "content": "Summary."} in place of '
        '{"role": "user", "content": "What is 6*7?"}',
    )
    assert (cut.finish, cut.fault, dict(cut.parts)) == ("length", "", {"checked": 0.0})
    assert (unread.fault, dict(unread.parts)) == ("", {"checked": 1.0}), "a call that cannot be read is a text"


def test_a_lost_agent_is_played_again() -> None:
    first, second = EnvironmentReplies(checked), EnvironmentReplies(checked)
    episode = Episode(PROBLEM, "train/0/p/0")
    first.began(episode, *first(first.begin(episode)))
    episode.turns += (call(6, 7),)
    first.answer_of(episode, first(*first.ask(episode)))
    episode.turns += ("41",)
    assert second.answer_of(episode, second(*second.ask(episode))) == "Sure?"
    for replies in (first, second):
        [held] = replies.residents.held.values()
        held.environment.close()


def test_a_chat_template_writes_the_agents_messages_and_tools() -> None:
    policy = chat_policy("ours")
    answers = Answers(EnvironmentReplies(checked), Limits(), in_process=True)
    play = Episodes(Settings(), answers, policy).begin([PROBLEM], 1, SAMPLING)
    asked = [{"role": "user", "content": "What is 6*7?"}]
    whole = policy.tokenizer.apply_chat_template(asked, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert policy.tokenizer.decode(prompt_tokens(play.problems[0], policy.tokenizer, {})) == whole
    [[first, second, _]] = play_through(play, [[call(6, 7), "42", "42"]])
    texts = [policy.tokenizer.decode(each.tokens) for each in (first, second) if isinstance(each, Observation)]
    begins = "<|im_end|>\n<|im_start|>assistant\n"
    assert texts == [
        f"\n<|im_start|>user\n<tool_response>\n42\n</tool_response>{begins}",
        f"\n<|im_start|>user\nSure?{begins}",
    ]


def test_a_run_with_an_agent(tmp_path: Any) -> None:
    """In worker processes; one of its rows makes the agent start over, which leaves its episodes unscored."""
    (tmp_path / "mine.py").write_text(
        "async def agent(client, row):\n"
        "    messages = [{'role': 'user', 'content': row['prompt']}]\n"
        "    reply = await client.chat.completions.create(messages=messages)\n"
        "    messages = [*messages, reply.choices[0].message, {'role': 'user', 'content': '1+'}][row['from']:]\n"
        "    reply = await client.chat.completions.create(messages=messages)\n"
        "    return len(reply.choices[0].message.content) / 8\n"
    )
    rows = [{"prompt": f"{a}+11=", "from": int(a == 12)} for a in range(11, 16)]
    settings = Settings(env=f"{tmp_path / 'mine.py'}:agent")
    config = small(tmp_path, steps=1, episodes=settings, scoring=Scoring(most_failures=1.0, workers=1))
    with grpo.train(config, data=rows, eval_data=[rows[-1]]) as run:
        done = run.completions(0)
        turns = run.turns(0)
    starts_over = {row["group_index"] for row in done if row["reward"] is None}
    assert len(starts_over) == 1
    for row in done:
        own = [t for t in turns if (t["group_index"], t["sample_index"]) == (row["group_index"], row["sample_index"])]
        if row["group_index"] in starts_over:
            assert row["why"].startswith("failure in its episode: message 1 of the request has changed")
        elif row["finish"] == "stop":
            assert [turn["who"] for turn in own] == ["model", "environment", "model"]
            assert (own[1]["text"], row["reward"]) == ("1+", len(own[2]["text"]) / 8)
