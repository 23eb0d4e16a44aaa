"""Episodes with a task that answers: what completions read, why episodes end, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo.config import Episodes
from grpo.episodes.answers import Answers, Episode
from grpo.episodes.play import Episodes as Plays
from grpo.errors import GrpoError
from grpo.rollout.protocol import Ended
from grpo.tasks import Task, load_task
from grpo.types import Observation, Problem, chat
from helpers.chats import chat_policy
from helpers.player import POLICY, SAMPLING, Heard, answers_of, begin, play_through

TALKATIVE = str(Path(__file__).parents[1] / "helpers/talkative.py")
ASKED = Problem("p", "ask: ", "42")
SECONDS = 5.0


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(TALKATIVE)


@pytest.fixture(scope="module")
def answers(task: Task) -> Iterator[Answers]:
    """In worker processes: the task is not trusted."""
    with answers_of(task, Episodes(tool_seconds=SECONDS)) as found:
        assert found.workers is not None
        yield found


@pytest.fixture
def here(task: Task, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """In this process."""
    monkeypatch.setattr(task, "trusted", True, raising=False)
    found = answers_of(task)
    assert found.workers is None
    return found


def texts(heard: Heard) -> list[str]:
    return [one.text if isinstance(one, Observation) else one.finish for one in heard]


@pytest.mark.parametrize("where", ["answers", "here"])
def test_a_task_answers_until_it_says_that_the_episode_is_over(where: str, request: pytest.FixtureRequest) -> None:
    play = begin(request.getfixturevalue(where), [ASKED, Problem("q", "", "")], group_size=2)
    assert play.opening() == {}
    scripts = [["a", "bb", "42"], ["42"], ["c", "42"], ["d", "e", "f", "42"]]
    heard = play_through(play, scripts)
    assert [texts(one) for one in heard] == [
        ["1a;", "2bb;", "stop"],
        ["stop"],
        ["1c;", "stop"],
        ["1d;", "2e;", "3f;", "stop"],
    ]
    first, second, _ = heard[0]
    assert isinstance(first, Observation)
    assert isinstance(second, Observation)
    assert (first.after, second.after) == (2, 5), "tokens sampled before it: each turn's text and its end token"
    assert first.tokens.tolist() == POLICY.tokenizer("1a;")["input_ids"]


def test_what_several_completions_read_is_encoded_once(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    play = begin(here, [ASKED, ASKED], group_size=2)
    encode, encoded = play.maker.template.observation, []

    def observation(problem: Problem, messages: Any, *, closed: bool = True) -> list[int]:
        encoded.append(messages[0]["content"])
        return encode(problem, messages, closed=closed)

    monkeypatch.setattr(play.maker.template, "observation", observation)
    heard = play_through(play, [["a", "42"], ["b", "42"], ["a", "42"], ["a", "42"]])
    assert [texts(one)[0] for one in heard] == ["1a;", "1b;", "1a;", "1a;"]
    assert sorted(encoded) == ["1a;", "1b;"]


def test_limits(here: Answers) -> None:
    def ended(script: list[str], room: int = 1000, **limits: float) -> list[str]:
        settings = Episodes(**limits)  # type: ignore[arg-type]
        return texts(play_through(begin(here, [ASKED], settings), [script], room, {"cut": "turn_length"})[0])

    assert ended(["a", "b", "c"], max_turns=2) == ["1a;", "turns"]
    assert ended(["a", "42"], max_turns=2) == ["1a;", "stop"], "the task itself ended it"
    assert ended(["a", "cut"]) == ["1a;", "turn_length"], "a turn that was cut is not answered"
    assert ended(["a"], room=2 + 3) == ["length"], "nothing could be sampled after it"
    assert ended(["a", "42"], room=2 + 3 + 3) == ["1a;", "stop"]
    assert ended(["a"], max_seconds=1e-9) == ["seconds"]
    assert ended(["a", "42"], max_seconds=3600) == ["1a;", "stop"]


def test_a_long_text_is_cut_to_the_limit_of_tokens_and_marked(here: Answers) -> None:
    """A character is a token here."""
    settings = Episodes(max_observation_tokens=12)
    [[read, *_]] = play_through(begin(here, [ASKED], settings), [["abcdefghijkl", "42"]])
    assert isinstance(read, Observation)
    assert (read.text, len(read.tokens)) == ("1abcde [cut]", 12)
    [[read, *_]] = play_through(begin(here, [ASKED], settings), [["abcdefghij", "42"]])
    assert isinstance(read, Observation)
    assert read.text == "1abcdefghij;", "just as long as is allowed"


def test_what_goes_wrong_ends_one_episode(answers: Answers, task: Task) -> None:
    """Each with its fault; the others go on, also one that prints 100 MB."""
    bad = [["raise"], ["sleep"], ["exit"]]
    good = [["shout", "42"], ["a", "b", "42"]]
    heard = play_through(begin(answers, [ASKED], group_size=5), [*bad, *good])
    ends = [end for one in heard for end in one if isinstance(end, Ended)]
    assert [end.finish for end in ends] == ["stop"] * 5
    assert [end.fault for end in ends] == ["failure", "timeout", "crash", "", ""]
    failure, timeout, crash, *_ = (end.why for end in ends)
    assert "ValueError: no such luck" in failure
    assert (timeout, crash) == ("no result after 5 s", "its process exited with 3")
    assert [texts(one) for one in heard[3:]] == [["1shout;", "stop"], ["1a;", "2b;", "stop"]]


def test_100_mb_are_cut_before_they_leave_the_worker(answers: Answers) -> None:
    [[read, *_]] = play_through(begin(answers, [ASKED]), [["long", "42"]])
    assert isinstance(read, Observation)
    assert (len(read.tokens), read.text) == (256, "y" * 250 + " [cut]")


def test_random_is_seeded_by_problem_sample_and_turn(answers: Answers) -> None:
    scripts = [["dice", "dice", "42"]] * 2
    first, again = (play_through(begin(answers, [ASKED], group_size=2), scripts) for _ in range(2))
    assert [texts(one) for one in first] == [texts(one) for one in again]
    assert len({text for one in first for text in texts(one)[:2]}) == 4


def test_quick_answers_to_a_problem_share_a_request(answers: Answers) -> None:
    """Each with its own answer, seed and fault; slow ones are asked one by one, so that all workers have some."""
    turns = [str(number) for number in range(64)]
    turns[5], turns[40] = "exit", "dice"

    def heard(seconds: float) -> list[Heard]:
        answers.seconds = seconds
        return play_through(begin(answers, [ASKED], group_size=64), [[turn, "42"] for turn in turns])

    requests = [Episode(ASKED, "key").request(turn) for turn in turns]
    answers.seconds = 1e-5
    assert [len(each.texts) for each in answers._joined(requests)] == [8] * 8, "four for each of two workers"
    quick, slow = heard(1e-5), heard(1.0)
    assert answers.seconds < 1
    assert [texts(one) for one in quick] == [texts(one) for one in slow]
    assert [texts(quick[number])[0] for number in (0, 5, 63)] == ["10;", "stop", "163;"]
    assert isinstance(quick[5][0], Ended)
    assert quick[5][0].fault == "crash"


def test_an_answer_that_is_no_text_stops_the_run(answers: Answers) -> None:
    with pytest.raises(
        GrpoError, match="task talkative, problem p, turn 'number': reply returned 42; return a text, or None"
    ):
        play_through(begin(answers, [ASKED]), [["number"]])


def test_an_answer_that_the_model_cannot_read_stops_the_run(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(POLICY.tokenizer), "unk_token_id", 2 + ord("z") % 46, raising=False)
    play = begin(here, [ASKED])
    with pytest.raises(
        GrpoError, match=r"task talkative, problem p: characters has no token for part of the answer '1z;'"
    ):
        play_through(play, [["z"]])


def test_the_unknown_token_written_out_is_text_and_an_end_token_may_be_it(here: Answers) -> None:
    """As in models whose unknown token is their end token, which the chat template writes."""
    policy = chat_policy("smollm2")
    policy.tokenizer.unk_token = "<|im_end|>"
    plays = Plays(Episodes(), here, policy)
    play = plays.begin([replace(ASKED, messages=chat("ask"))], 1, SAMPLING)
    [[read, *_]] = play_through(play, [["<|im_end|>", "42"]])
    assert isinstance(read, Observation)
    assert read.text == "1<|im_end|>;"
    assert read.tokens.tolist().count(policy.tokenizer.unk_token_id) == 1, "that of the template"
