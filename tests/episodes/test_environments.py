"""Environments: the forms that people write, and their lives in worker processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.episodes.environments import Kind, Played, Step, load_environment, seed_of
from grpo.errors import GrpoError
from grpo.rewards.call_log import CallLog
from grpo.rewards.functions import parse, trl_arguments
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import History, Outcome, Request, invoke
from grpo.rewards.pool.workers import Workers
from grpo.types import Problem
from helpers import environments

FILE = str(Path(environments.__file__))


def problem(id: str = "p", **columns: Any) -> Problem:
    return Problem(id, "the prompt", "", columns=columns)


class Player:
    """Plays one episode, through worker processes or in this one."""

    def __init__(self, answer: Workers | EnvironmentReplies, of: Problem, key: str = "train/0/p/0"):
        self.answer, self.problem, self.key = answer, of, key
        self.turns: tuple[str, ...] = ()
        self.observations: tuple[str, ...] = ()

    def reset(self) -> Outcome:
        return self._ask(())

    def step(self, text: str) -> Outcome:
        return self._ask((*self.turns, text))

    def end(self) -> Outcome:
        return self._ask(self.turns)

    def request(self, turns: tuple[str, ...]) -> Request:
        return Request(self.problem, ("",), histories=(History(self.key, turns, self.observations),))

    def _ask(self, turns: tuple[str, ...]) -> Outcome:
        asked = self.request(turns)
        if isinstance(self.answer, Workers):
            [[[outcome]]] = self.answer.start([asked])()
        else:
            [outcome] = invoke(self.answer, asked)
        self.hear(turns, outcome)
        return outcome

    def hear(self, turns: tuple[str, ...], outcome: Outcome) -> None:
        if outcome.kept:
            self.turns, self.observations = turns, (*self.observations, outcome.extra["text"] or "")


def reply(name: str) -> EnvironmentReplies:
    return EnvironmentReplies(f"{FILE}:{name}")


@pytest.fixture(scope="module")
def unruly() -> Iterator[Workers]:
    """One worker, so that all episodes live together."""
    pool = Workers([EnvironmentReplies(f"{FILE}:Unruly")], Limits(seconds=3, memory=1 << 28, workers=1))
    yield pool
    pool.close()


def said(outcome: Outcome) -> tuple[str | None, float | None, bool]:
    return outcome.extra["text"], outcome.extra["reward"], outcome.extra["done"]


def calls(*pairs: tuple[str, dict[str, Any]]) -> str:
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in pairs])


def test_trl_s_documented_environment() -> None:
    """Its reset makes the task, seeded by the problem; its methods are tools; get_reward is called at the end."""
    counter = reply("IncrementEnv")
    assert sorted(tool.__name__ for tool in counter.kinds.of(problem()).tools) == ["increment", "read"]
    first, second = (Player(counter, problem(), f"train/0/p/{sample}") for sample in (0, 1))
    text = first.reset().extra["text"]
    target = int(text.removeprefix("Increment the counter by ").removesuffix("."))
    assert second.reset().extra["text"] == text
    answers = first.step(calls(("increment", {"step": target - 1 or 2}), ("increment", {"step": -1}), ("read", {})))
    assert json.loads(answers.extra["text"]) == [
        {"answer": str(target - 1 or 2), "fault": ""},
        {"answer": "error: ValueError: Only\\nupwards.", "fault": "error"},
        {"answer": f"it is {target - 1 or 2}", "fault": ""},
    ]
    second.step(calls(("increment", {"step": target})))
    assert first.end().parts == {"IncrementEnv": 0.0}
    assert second.end().parts == {"IncrementEnv": 1.0}
    assert counter.residents.held == {}


@pytest.mark.parametrize(
    ("form", "reward"),
    [("text", None)]
    + [(form, 1.0) for form in ("three", "four", "five", "dict", "object", "skyrl", "messages", "tuple")],
)
def test_every_form_of_step(form: str, reward: float | None) -> None:
    env = Played(environments.Guess())
    assert env.reset(problem(form=form), seed=7) == ("Guess." if form == "five" else None)
    assert env.step("3") == Step("higher", None if reward is None else 0.0, False)
    assert env.step("9") == Step("lower", None if reward is None else 0.0, False)
    assert env.step("7") == Step("found", reward, reward is not None)


def test_numbers_are_text_nothing_ends_and_truncation_too() -> None:
    def played(form: str) -> Played:
        env = Played(environments.Guess())
        env.reset(problem(form=form), seed=7)
        return env

    assert played("number").step("3") == Step("6")
    assert played("nothing").step("3") == Step(None, done=True)
    five = played("five")
    assert [five.step("1").done for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("bad", "step returned {'higher'} as observation; return a text, (observation, reward, done), Gymnasium's"),
        ("bad reward", "step returned the reward 'much'; return a finite number"),
    ],
)
def test_what_cannot_be_read_is_a_mistake(form: str, why: str) -> None:
    player = Player(reply("Guess"), problem(form=form))
    player.reset()
    outcome = player.step("-1")
    assert outcome.fault == "mistake"
    assert outcome.why.startswith(why)


def test_async_methods_rewards_of_turns_and_close(tmp_path: Path) -> None:
    note = tmp_path / "note"
    echo = reply("AsyncEcho")
    player = Player(echo, problem(note=str(note)))
    assert said(player.reset()) == (None, None, False)
    assert said(player.step("a")) == ("a", 0.25, False)
    done = player.step("stop")
    assert (said(done), done.kept) == (("a stop", 0.25, True), False)
    assert done.parts == {"AsyncEcho": 0.25 + 0.25 + 2.0}
    assert note.read_text() == "closed after ['a', 'stop']\n"
    cut = Player(echo, problem(note=str(note)))  # a limit ends the next
    cut.reset()
    cut.step("b")
    assert cut.end().parts == {"AsyncEcho": 0.25 + 1.0}
    assert note.read_text().endswith("closed after ['b']\n")
    assert cut.end().parts == {"AsyncEcho": 0.25 + 1.0}, "asked again, it is played again"


def test_a_failing_close_keeps_the_reward() -> None:
    player = Player(reply("AsyncEcho"), problem(note="/nowhere/note"))
    player.reset()
    outcome = player.end()
    assert (outcome.parts, outcome.fault) == ({"AsyncEcho": 0.0}, "")
    assert outcome.extra["close"].startswith("FileNotFoundError")


@pytest.mark.parametrize("at", ["reset", "step", "get_reward"])
@pytest.mark.parametrize(
    ("fault", "found", "why"),
    [
        ("raise", "failure", "ValueError: no such luck"),
        ("exit", "crash", "its process exited with 3"),
        ("sleep", "timeout", "no result after 3 s"),
    ],
)
def test_what_goes_wrong_ends_its_own_episode(unruly: Workers, at: str, fault: str, found: str, why: str) -> None:
    """Another episode of the same worker goes on as if nothing had happened."""
    other = Player(unruly, problem("other"), f"train/{at}/{fault}/other")
    alone = Player(reply("Unruly"), problem("other"), f"train/{at}/{fault}/other")
    assert said(other.reset()) == said(alone.reset())
    assert said(other.step("a")) == said(alone.step("a"))
    bad = Player(unruly, problem("bad", at=at, fault=fault), f"train/{at}/{fault}/bad")
    outcome = bad.reset()
    if at != "reset":
        assert outcome.fault == ""
        outcome = bad.step("a")
    if at == "get_reward":
        outcome = bad.end()
    assert (outcome.fault, dict(outcome.parts), outcome.kept) == (found, {}, False)
    assert why in outcome.why
    assert said(other.step("b")) == said(alone.step("b"))
    assert other.end().parts == alone.end().parts == {"Unruly": 2.0}


def test_an_episode_that_does_not_repeat_is_refused(unruly: Workers) -> None:
    lost = Player(unruly, problem("lost", fault="urandom"), "train/1/lost/0")
    heard = lost.reset().extra["text"]
    other = Player(unruly, problem("other"), "train/1/other/0")
    other.reset()
    assert other.step("exit").fault == "crash"
    outcome = lost.step("a")
    assert (outcome.fault, outcome.kept) == ("failure", False)
    assert outcome.why.startswith("not repeatable: in reset it returned '")
    assert outcome.why.endswith(f"and before that '{heard}'")


def test_a_class_may_refuse_to_be_played_again() -> None:
    once = reply("OnceOnly")
    player = Player(once, problem())
    player.reset()
    once.residents.held.clear()
    outcome = player.step("a")
    assert outcome.why == "not repeatable: its worker process ended, and the class says repeatable = False"


def test_a_lost_episode_has_time_to_be_played_again(unruly: Workers) -> None:
    """The time limit of each call that it takes: here reset and one turn, which hangs."""
    lost, other = (Player(unruly, problem(name), f"train/2/{name}/0") for name in ("lost", "other"))
    for each in (lost, other):
        each.reset()
    assert other.step("exit").fault == "crash"
    outcome = lost.step("sleep")
    assert (outcome.fault, outcome.why) == ("timeout", "no result after 6 s")


def test_all_episodes_are_played_again_after_their_supervisor_was_killed(unruly: Workers) -> None:
    player = Player(unruly, problem("long"), "train/2/long/0")
    alone = Player(reply("Unruly"), problem("long"), "train/2/long/0")
    for each in (player, alone):
        each.reset()
        each.step("a")
    unruly.process.kill()
    assert said(player.step("b")) == said(alone.step("b"))


def test_episodes_share_the_workers_and_keep_their_processes() -> None:
    pool = Workers([EnvironmentReplies(f"{FILE}:Server")], Limits(seconds=30.0, workers=2))
    players = [Player(pool, problem(), f"train/0/p/{sample}") for sample in range(4)]
    for [outcome], player in zip(pool.start([each.request(()) for each in players])()[0], players, strict=True):
        player.hear((), outcome)
    told = [each.step("a").extra["text"].split() for each in players]
    assert [child for child, _, _ in told] == [each.observations[0] for each in players]
    assert {alive for _, alive, _ in told} == {"True"}
    workers = [worker for _, _, worker in told]
    assert len(set(workers)) == 2
    assert [each.step("b").extra["text"].split()[2] for each in players] == workers
    assert not any(each.end().fault for each in players)
    pool.close()


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("Guess", "field episodes.env: 'Guess' is not a valid environment; write file.py:NAME or module:NAME"),
        (f"{FILE}:Missing", f"environment {FILE}:Missing: {FILE} has no class Missing; it has "),
        ("nowhere.py:Env", "environment nowhere.py:Env: file nowhere.py does not exist"),
        (
            f"{FILE}:WithoutReset",
            f"environment {FILE}:WithoutReset: WithoutReset has no method reset; add reset(self, **",
        ),
        (
            f"{FILE}:Bare",
            f"environment {FILE}:Bare: Bare has neither a method step(text) nor other public methods, which ",
        ),
        (
            f"{FILE}:Sized",
            f"environment {FILE}:Sized: Sized takes 'size' when it is made, and it is made without arguments; give ",
        ),
    ],
)
def test_what_is_no_environment_is_refused(env: str, why: str) -> None:
    with pytest.raises(GrpoError) as raised:
        load_environment(env)
    assert str(raised.value).startswith(why)


def test_columns_that_reset_needs() -> None:
    class Needs:
        def reset(self, target, level=1, *, seed, **columns): ...

        def step(self, text): ...

    kind = Kind.of(Needs, "mine.py:Needs")
    kind.check_columns([problem(target=3)])
    with pytest.raises(
        GrpoError, match=r"environment mine\.py:Needs: reset takes 'target', which is not a column of the data"
    ):
        kind.check_columns([problem(level=3)])


def test_the_seed_follows_from_the_problem() -> None:
    assert seed_of(problem("a")) == seed_of(problem("a", level=1)) != seed_of(problem("b"))


def test_a_class_of_tools_that_gives_no_reward_is_refused_where_nothing_else_does() -> None:
    class Shell:
        def reset(self) -> None: ...
        def run(self, command: str) -> str: ...

    with pytest.raises(GrpoError, match=r"^environment Shell: Shell has no method get_reward, so episodes earn"):
        load_environment(Shell).check_rewards()
    load_environment(environments.Guess).check_rewards()
    load_environment(environments.IncrementEnv).check_rewards()


def test_reward_functions_that_take_environments_are_called_where_these_live() -> None:
    """In a worker process, with the object itself, which cannot be pickled. They share its file's classes."""
    echo = reply("EchoEnv")
    [first, second, plain] = parse(f"{FILE}:reward_func, {FILE}:patient, helpers.trl_rewards:digits")
    assert [*echo.take(dict.fromkeys((first, second, plain)), evaluation=False)] == [first, second]
    pool = Workers([echo], Limits(seconds=30, workers=1))
    player = Player(pool, problem(level=2))
    player.reset()
    player.step(calls(("echo", {"message": "hello"})))
    outcome = player.end()
    pool.close()
    assert (outcome.fault, outcome.parts) == ("", {"reward_func": 0.05, "patient": 0.0})


def test_what_only_the_trainer_knows_is_not_made_up() -> None:
    request = Request(problem(), ("text",), environments=(environments.EchoEnv(),))
    given = trl_arguments(request, CallLog(1), messages=False)
    assert {"environments", "prompts", "completions"} < given.keys()
    assert not {"completion_ids", "trainer_state"} & given.keys()


@pytest.mark.parametrize(
    ("env", "reward", "why"),
    [
        ("EchoEnv", "of_tokens", "of_tokens: takes environments and completion_ids; it is called where its"),
        ("EchoEnv", "missing", f"missing: {FILE} has no function missing; it has "),
        ("agent", "reward_func", "reward_func: takes environments, and environment "),
    ],
)
def test_reward_functions_of_environments_that_are_refused(env: str, reward: str, why: str) -> None:
    [spec] = parse(f"{FILE}:{reward}")
    with pytest.raises(GrpoError) as raised:
        reply(env).take({spec: None}, evaluation=False)
    assert str(raised.value).startswith(f"reward {FILE}:{why}")


def test_a_reward_function_of_environments_returns_one_value_for_each() -> None:
    echo = reply("EchoEnv")
    [spec] = parse(f"{FILE}:too_many")
    assert echo.take({spec: None}, evaluation=False)
    echo.load()
    player = Player(echo, problem())
    player.reset()
    outcome = player.end()
    assert outcome.fault == "mistake"
    assert outcome.why == f"reward {FILE}:too_many: returned 2 values for 1 completion; return one for each"
