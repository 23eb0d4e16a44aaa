"""Episodes with an environment, as the engine plays them: prompts, answers, rewards, limits, faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo.config import Episodes
from grpo.episodes.answers import Answers
from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.episodes.play import Episodes as Plays
from grpo.errors import GrpoError
from grpo.rewards.functions import parse
from grpo.rewards.pool.confine import Limits
from grpo.rollout.protocol import Ended
from grpo.types import Call, Observation, Problem, chat
from helpers import environments
from helpers.chats import chat_policy
from helpers.player import POLICY, SAMPLING, Heard, begin, play_through


def here(env: type, reward: str = "") -> Answers:
    """In this process. `reward`: functions that take environments."""
    replies = EnvironmentReplies(env)
    specs = {spec: getattr(environments, spec.name) for spec in parse(reward)}
    assert replies.take(specs, evaluation=False).keys() == specs.keys()
    replies.load()
    return Answers(replies, Limits(), in_process=True)


def problem(id: str = "p", **columns: Any) -> Problem:
    return Problem(id, "play: ", "", messages=chat("play: "), columns=columns)


def texts(heard: Heard) -> list[str]:
    return [one.text if isinstance(one, Observation) else one.finish for one in heard]


def ids(text: str) -> list[int]:
    return POLICY.tokenizer(text)["input_ids"]


def end(heard: Heard) -> Ended:
    assert isinstance(heard[-1], Ended)
    return heard[-1]


def test_an_environment_answers_rewards_and_ends() -> None:
    play = begin(here(environments.Guess), [problem(form="five", seed=7)], group_size=3)
    [asked] = play.problems
    assert (asked.prompt, asked.messages) == ("play: Guess.", ({"role": "user", "content": "play: Guess."},))
    assert (play.opening(), play.prompts) == ({}, {})
    won, lost, cut = play_through(play, [["3", "9", "7"], ["1", "1", "1"], ["3", "cut"]], cut={"cut": "turn_length"})
    assert texts(won) == ["higher", "lower", "stop"]
    assert (end(won).parts, end(won).turn_rewards) == ({"Guess": 1.0}, (0.0, 0.0, 1.0))
    last = end(won).last
    assert last is not None
    assert (last.text, last.after, len(last.tokens)) == ("found", 6, 0)
    assert (texts(lost), end(lost).parts) == (["higher", "higher", "stop"], {"Guess": 0.0})
    assert (texts(cut), end(cut).turn_rewards, end(cut).last) == (["higher", "turn_length"], (0.0, 0.0), None)
    [first] = play_through(begin(here(environments.Guess), [problem()]), [["cut"]], cut={"cut": "length"})
    assert (end(first).parts, end(first).turn_rewards) == ({}, ()), "it has not been asked"


def test_get_reward_is_called_however_an_episode_ends_and_so_is_close(tmp_path: Path) -> None:
    """Turns earn 0.25 each, and the end 1 for each turn that was answered: the last turn earns that."""
    note = tmp_path / "note"
    echo, asked = here(environments.AsyncEcho), problem(note=str(note))
    [turns, stopped] = play_through(begin(echo, [asked], Episodes(max_turns=2), 2), [["a", "b"], ["a", "stop"]])
    assert (end(turns).finish, end(stopped).finish) == ("turns", "stop")
    assert end(turns).parts == end(stopped).parts == {"AsyncEcho": 0.5 + 2.0}
    assert end(turns).turn_rewards == (0.25, 0.25 + 2.0)
    [length] = play_through(begin(echo, [asked]), [["a"]], room=3)
    assert (end(length).finish, end(length).parts) == ("length", {"AsyncEcho": 0.25 + 1.0})
    assert len(note.read_text().splitlines()) == 3
    play = begin(echo, [asked], group_size=2)
    play.close()  # the rollout was broken off
    assert note.read_text().splitlines()[3:] == ["closed after []"] * 2
    play.close()
    assert len(note.read_text().splitlines()) == 5


def test_completions_that_begin_differently_share_the_beginning_of_the_prompt() -> None:
    environments.Various.begun = 7
    plain = Problem("p", "play: ", "")
    play = begin(here(environments.Various), [plain], group_size=3)
    assert play.problems == [plain]
    opening = play.opening()
    [shared] = play.prompts.values()
    assert shared.tolist() == ids("play: game ")
    assert [opening[n].tokens.tolist() for n in range(3)] == [ids("8"), ids("9"), ids("10")]
    assert [opening[n].after for n in range(3)] == [0, 0, 0]
    with pytest.raises(GrpoError, match="begin with different texts, here with 1000 tokens, which max_new_tokens"):
        begin(here(environments.Various), [replace(plain, columns={"long": 999})], group_size=2).opening()


def test_an_episode_that_cannot_begin_ends_after_its_first_turn() -> None:
    class Sometimes(environments.Guess):
        begun = 0

        def reset(self, **columns: Any) -> Any:
            Sometimes.begun += 1
            if Sometimes.begun == 2:
                raise ConnectionError("no server")
            return super().reset(form="five", seed=7)

    play = begin(here(Sometimes), [problem()], group_size=2)
    assert play.problems[0].prompt == "play: Guess."
    won, failed = play_through(play, [["7"], ["7"]])
    assert (end(won).parts, end(won).fault) == ({"Sometimes": 1.0}, "")
    assert (end(failed).parts, end(failed).fault, end(failed).turn_rewards) == ({}, "failure", ())
    assert "ConnectionError: no server" in end(failed).why


def hermes(*calls: Any) -> str:
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def test_trl_s_environment_with_tool_calls() -> None:
    answers = here(environments.IncrementEnv)
    play = Plays(Episodes(), answers, chat_policy("smollm2")).begin([problem(target=3)], 2, SAMPLING)
    assert play.problems[0].prompt == "play: Increment the counter by 3."
    one, two = ({"name": "increment", "arguments": {"step": step}} for step in (1, 2))
    wrong = {"name": "decrement", "arguments": {}}
    scripts: Sequence[Sequence[str]] = [[hermes(one, wrong, two), "done"], [hermes(wrong), "done"]]
    counted, wrong_only = play_through(play, scripts)
    first, _ = counted
    assert isinstance(first, Observation)
    unknown = "error: unknown function decrement; known: increment, read"
    assert first.calls == (
        Call("increment", '{"step": 1}', "1"),
        Call("decrement", json.dumps(wrong), unknown, "error"),
        Call("increment", '{"step": 2}', "3"),
    )
    assert (end(counted).parts, end(counted).turn_rewards) == ({"IncrementEnv": 1.0}, (0.0, 1.0))
    assert (texts(wrong_only)[0], end(wrong_only).parts) == (unknown, {"IncrementEnv": 0.0})
    limited = Answers(EnvironmentReplies(environments.IncrementEnv, max_calls=2), Limits(), in_process=True)
    play = Plays(Episodes(), limited, chat_policy("smollm2")).begin([problem(target=3)], 1, SAMPLING)
    [heard] = play_through(play, [[hermes(one, two), hermes(one)]])
    assert (end(heard).finish, end(heard).parts) == ("calls", {"IncrementEnv": 1.0}), "the third call is not made"


def test_trl_s_reward_functions_read_the_environments_of_episodes() -> None:
    """They see the object as its episode left it, the whole conversation, the prompt and the columns."""
    answers = here(environments.EchoEnv, "python:reward_func*2, python:patient*0.5")
    asked = replace(problem(level=3), conversational=True)
    play = Plays(Episodes(), answers, chat_policy("smollm2")).begin([asked], 2, SAMPLING)
    call = {"name": "echo", "arguments": {"message": "hello"}}
    spoken, silent = play_through(play, [[hermes(call), "done"], ["nothing"]])
    assert end(spoken).parts == {"reward_func": 0.05, "patient": 3.0 * 3}
    assert end(spoken).turn_rewards == (0.0, 2 * 0.05 + 0.5 * 9.0), "the last turn earns what the end gives"
    assert end(spoken).logged == {"prompts": 1}, "of one message"
    assert end(spoken).extra["seen"] == [
        {
            "role": "assistant",
            "content": hermes(call),
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "name": "echo", "content": "hello"},
        {"role": "assistant", "content": "done"},
    ]
    assert end(silent).parts == {"reward_func": 0.0, "patient": 3.0}


def test_each_prompt_describes_the_tools_of_its_own_environment() -> None:
    envs = {"count": environments.IncrementEnv, "echo": environments.EchoEnv}
    replies = EnvironmentReplies(envs)
    answers = Answers(replies, Limits(), in_process=True)
    asked = [problem(name, environment=name, target=1) for name in envs]
    play = Plays(Episodes(), answers, chat_policy("smollm2")).begin(asked, 1, SAMPLING)
    assert [[tool["function"]["name"] for tool in each.tools] for each in play.problems] == [
        ["increment", "read"],
        ["echo"],
    ]
    echo = {"name": "echo", "arguments": {"message": "hi"}}
    counted, echoed = play_through(play, [[hermes(echo), "done"], [hermes(echo), "done"]])
    assert [texts(heard)[0] for heard in (counted, echoed)] == [
        "error: unknown function echo; known: increment, read",
        "hi",
    ]
    assert (end(counted).parts, end(echoed).parts) == ({"IncrementEnv": 0.0}, {})


def test_environments_that_cannot_go_together() -> None:
    for env, why in {
        "a=x.py:A, a=y.py:B": "does not give each environment a name of its own; write NAME=file.py:Class,NAME=",
        "a=x.py:A, y.py:B": "'a=x.py:A, y.py:B' does not give each environment a name",
        "x.py:A, y.py:B": "'x.py:A, y.py:B' does not give each environment a name",
        "a=helpers.environments:Guess, b=helpers.environments:EchoEnv": "environments a, b: are of different forms",
    }.items():
        with pytest.raises(GrpoError, match=why):
            EnvironmentReplies(env)
