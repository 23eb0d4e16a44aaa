"""Tools: the calls of a turn are made in workers, at once, and what goes wrong is a line that the model reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.config import Episodes, Scoring
from grpo.episodes.answers import Answers
from grpo.episodes.play import Episodes as Plays
from grpo.episodes.play import Play
from grpo.episodes.start import chosen_replier, start_answers
from grpo.errors import GrpoError
from grpo.rollout.protocol import Ended
from grpo.tasks import load_task
from grpo.tasks.addition import Addition
from grpo.types import Call, Observation, Problem, chat
from helpers.chats import chat_policy
from helpers.player import SAMPLING, Heard, play_through

HELPERS = Path(__file__).parents[1] / "helpers"
TOOLS = ", ".join(f"{HELPERS}/toolbox.py:{name}" for name in ("multiply", "later", "behave"))
ASKED = Problem("p", "6*7?", "42", messages=chat("6*7?"))
SECONDS = 5.0


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    settings = Episodes(tools=TOOLS, tool_seconds=SECONDS)
    with start_answers(settings, Scoring(workers=2, memory_gb=0.5), Addition(), chosen_replier(settings)) as found:  # type: ignore[union-attr]
        yield found


def begin(answers: Answers, group_size: int = 1, **limits: Any) -> Play:
    settings = answers.replier.limits = Episodes(tools=TOOLS, tool_seconds=SECONDS, **limits)  # type: ignore[attr-defined]
    return Plays(settings, answers, chat_policy("smollm2")).begin([ASKED], group_size, SAMPLING)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def calls_in(heard: Heard) -> list[Call]:
    return [made for one in heard if isinstance(one, Observation) for made in one.calls]


def ends(heard: list[Heard]) -> list[str]:
    return [end.finish for *_, end in heard if isinstance(end, Ended)]


def test_the_calls_of_a_turn_are_answered_in_their_order(answers: Answers) -> None:
    """Whoever answers first: the second waits longer than the others. Calls that cannot be made are answered too."""
    turn = "So: " + "".join(
        [
            call("multiply", a=47, b="86"),
            call("later", text="at last", seconds=0.2),
            call("divide", a=1, b=2),
            call("multiply", a=2),
            "<tool_call>{nonsense</tool_call>",
            call("later", text="at once"),
        ]
    )
    [heard] = play_through(begin(answers, max_observation_tokens=1000), [[turn, "4042"]], room=2000)
    found = calls_in(heard)
    assert [(one.name, one.answer, one.fault) for one in found[:2]] == [
        ("multiply", "4042", ""),
        ("later", "at last", ""),
    ]
    assert [(one.name, one.fault) for one in found[2:]] == [
        ("divide", "error"),
        ("multiply", "error"),
        ("", "error"),
        ("later", ""),
    ]
    assert found[2].answer.startswith("error: unknown function divide; known: multiply, later, behave")
    assert json.loads(found[0].arguments) == {"a": 47, "b": 86}
    observation, end = heard
    assert isinstance(observation, Observation)
    read = chat_policy("smollm2").tokenizer.decode(observation.tokens)
    assert read.startswith("\n<|im_start|>user\n<tool_response>\n4042\n</tool_response>\n<tool_response>\nat last\n")
    assert observation.text.splitlines()[:2] == ["4042", "at last"]
    assert isinstance(end, Ended)
    assert (end.finish, end.fault) == ("stop", ""), "a turn without a call ends the episode"


BAD = {
    "sleep": ("error: behave: no result after 5 s", "timeout"),
    "exit": ("error: behave: its process exited with 3", "crash"),
    "quit": ("error: behave: SystemExit: 4", "crash"),
    "allocate": ("error: behave: MemoryError", "crash"),
    "raise": ("error: ValueError: two\\nlines", "error"),
    "cancel": ("error: CancelledError: ", "error"),
    "bytes": ("b'\\xffraw'", ""),
    "nothing": ("None", ""),
    "dict": ("{'a': [1, 2.5]}", ""),
    "half": ("?", ""),
    "long": ("y" * (160 - 53 - 6) + " [cut]", ""),
}


def test_what_goes_wrong_is_one_line_and_the_episode_goes_on(answers: Answers) -> None:
    """As in TRL a result is written with `str`. 100 MB that are printed or returned cost nothing but their call; of an
    observation of 160 tokens the template writes 53, and the mark has 6."""
    scripts = [[call("behave", how=how), "done"] for how in (*BAD, "print")]
    heard = play_through(begin(answers, len(scripts), max_observation_tokens=160), scripts)
    assert ends(heard) == ["stop"] * len(scripts)
    *found, printed = ([(one.answer, one.fault) for one in calls_in(each)] for each in heard)
    assert found == [[expected] for expected in BAD.values()]
    assert printed[0][0].startswith("print "), "its answer, whatever it printed"


def test_limits(answers: Answers) -> None:
    one, two = call("multiply", a=1, b=1), call("multiply", a=2, b=1) * 2

    def ended(script: list[str], **limits: Any) -> tuple[str, int]:
        [heard] = play_through(begin(answers, **limits), [script])
        return ends([heard])[0], len(calls_in(heard))

    assert ended([one, one, "2"]) == ("stop", 2)
    assert ended([one, one, "2"], max_turns=2) == ("turns", 1), "the calls of the last turn are not made"
    assert ended([one, "2"], max_turns=2) == ("stop", 1)
    assert ended([one, two], max_calls=2) == ("calls", 1), "those of a turn are made together or not at all"
    assert ended([one, one, "2"], max_calls=2) == ("stop", 2)


def test_answers_do_not_depend_on_the_worker(answers: Answers) -> None:
    """`random` is seeded by problem, sample, turn and call."""
    scripts = [[call("behave", how="dice") * 2, call("behave", how="dice"), "done"]] * 2
    first, again = (play_through(begin(answers, 2), scripts) for _ in range(2))
    rolled = [one.answer for heard in first for one in calls_in(heard)]
    assert rolled == [one.answer for heard in again for one in calls_in(heard)]
    assert len(set(rolled)) == 6


def test_a_turn_that_was_cut_calls_nothing(answers: Answers) -> None:
    cut = call("multiply", a=1, b=1)
    [heard] = play_through(begin(answers), [[cut]], cut={cut: "turn_length"})
    assert (ends([heard]), calls_in(heard)) == (["turn_length"], [])


def test_what_is_refused(tmp_path: Path) -> None:
    talkative = load_task(f"{HELPERS}/talkative.py")
    settings = Episodes(tools=TOOLS)
    with pytest.raises(
        GrpoError, match=r"field episodes.tools: task talkative answers itself, .* a model's own task is taken"
    ):
        start_answers(settings, Scoring(), talkative, chosen_replier(settings))
    (tmp_path / "mine.py").write_text("def bare(x): ...\n")
    for tools, message in (
        (f"{tmp_path}/mine.py:bare", "tool .*mine.py:bare: .*docstring"),
        (f"{tmp_path}/mine.py:other", "tool .*mine.py:other: .* has no function other; it has bare"),
        (f"{tmp_path}/none.py:f", "tool .*none.py:f: file .* does not exist"),
        ("multiply", "field episodes.tools: 'multiply' is not a valid tool; write file.py:NAME"),
    ):
        with pytest.raises(GrpoError, match=message):
            chosen_replier(Episodes(tools=tools))


def test_a_call_is_made_once(answers: Answers, tmp_path: Path) -> None:
    """However quick calls are: one that was sent with others, and answered, would be made again when another one ends
    the worker."""
    note = tmp_path / "note"
    turns = [call("behave", how=f"note {note}") for _ in range(64)]
    turns[6] = turns[39] = call("behave", how="exit")
    answers.seconds = 1e-5
    played = play_through(begin(answers, 64), [[turn, "done"] for turn in turns])
    assert [one.answer for heard in played for one in calls_in(heard)].count("noted") == 62
    assert len(note.read_text().splitlines()) == 62
