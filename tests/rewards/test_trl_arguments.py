"""What TRL passes to a reward function beside texts and columns: the trainer's state, an event loop, and loggers."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from grpo.config import Config, Scoring
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.rewards.call_log import CallLog
from grpo.rewards.trainer_state import TrainerState
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Completion, Group, Problem


def group_of(*texts: str) -> Group:
    nothing = np.zeros(0, dtype=np.int64)
    completions = tuple(Completion(text, nothing, nothing, "stop") for text in texts)
    return Group(Problem("p", "6*7=", "42"), nothing, completions, 0)


def scorer_of(file: Path, source: str, names: str, state: TrainerState | None = None) -> Scorer:
    file.write_text(source)
    reward = ", ".join(f"{file}:{name}" for name in names.split())
    return Scorer(Arithmetic(), reward, Scoring(workers=1, seconds=1.0), state=state)


ASYNC = """
import asyncio
from contextlib import asynccontextmanager

lock, loops, connections = asyncio.Lock(), set(), []

class Client:
    '''Opened by the first call, as a client of httpx: its connection belongs to the loop that opened it.'''
    reader = None

    async def length(self, text):
        if self.reader is None:
            self.reader = asyncio.Queue()
            self.pump = asyncio.get_running_loop().create_task(self.answer())
        reply = asyncio.get_running_loop().create_future()
        await self.reader.put((text, reply))
        return await reply

    async def answer(self):
        while True:
            text, reply = await self.reader.get()
            await asyncio.sleep(0)
            reply.set_result(float(len(text)))

client = Client()

async def one(completions, **_):
    loops.add(id(asyncio.get_running_loop()))
    async def under_lock(text):
        async with lock:
            return await client.length(text)
    return await asyncio.gather(*map(under_lock, completions))

async def other(completions, **_):
    loops.add(id(asyncio.get_running_loop()))
    return [await client.length(text) + 10 * len(loops) for text in completions]

async def slow(problem, text):
    await asyncio.sleep(3600 if text == 'hang' else 0)
    return 1.0
"""


def test_all_calls_of_a_worker_share_one_event_loop(tmp_path: Path) -> None:
    """A client that a first call opens, with a task that runs on, serves later calls of both functions."""
    with scorer_of(tmp_path / "mine.py", ASYNC, "one other") as scorer:
        for _ in range(4):
            [done] = scorer.score([group_of("abc", "ab", "a")])
            assert [one.reward for one in done.completions] == [16.0, 14.0, 12.0]
            assert [one.why for one in done.completions] == [""] * 3


def test_a_shared_httpx_client_serves_every_call(tmp_path: Path) -> None:
    pytest.importorskip("httpx")
    source = """
import asyncio, httpx

async def answered(reader, writer):
    while request := await reader.readuntil(b"\\r\\n\\r\\n"):
        body = request.split(b" ")[1][1:]
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
        await writer.drain()

client, address = httpx.AsyncClient(timeout=None), []

async def remote(completions, **_):
    if not address:
        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        address.append("http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1])
    replies = await asyncio.gather(*(client.get(address[0] + text) for text in completions))
    return [float(reply.text) for reply in replies]
"""
    with scorer_of(tmp_path / "mine.py", source, "remote") as scorer:
        for _ in range(4):
            [done] = scorer.score([group_of("3", "14", "15")])
            assert [(one.reward, one.why) for one in done.completions] == [(3.0, ""), (14.0, ""), (15.0, "")]


def test_an_async_function_that_hangs_costs_one_completion(tmp_path: Path) -> None:
    with scorer_of(tmp_path / "mine.py", ASYNC, "slow") as scorer:
        for _ in range(2):
            [done] = scorer.score([group_of("a", "hang", "b")])
            assert [one.reward for one in done.completions] == [1.0, 0.0, 1.0]


def test_the_state_has_every_attribute_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = {field.name for field in dataclasses.fields(transformers.TrainerState)}
    ours = {field.name for field in dataclasses.fields(TrainerState)}
    assert ours - theirs == {"steps_per_epoch"}
    assert theirs <= ours


def test_a_function_sees_the_training_step(tmp_path: Path) -> None:
    source = (
        "def f(completions, trainer_state):\n"
        "    state = trainer_state\n"
        "    return [state.global_step + state.epoch / 10 + state.max_steps / 1e4] * len(completions)\n"
    )
    state = TrainerState.of(Config(steps=100, prompts_per_step=4), training_rows=40)
    with scorer_of(tmp_path / "mine.py", source, "f", state) as scorer:
        for step in (0, 30):
            [done] = scorer.score([group_of("a")], step)
            assert done.completions[0].reward == pytest.approx(step + step / 10 / 10 + 0.01)


def test_extra_columns_belong_to_their_completions_and_metrics_to_the_call(tmp_path: Path) -> None:
    source = (
        "import numpy as np\n"
        "def f(completions, log_extra, log_metric):\n"
        "    log_extra('length', np.array([len(text) for text in completions]))\n"
        "    log_extra('words', [text.split() for text in completions])\n"
        "    for text in completions: log_metric('mean_length', np.float32(len(text)))\n"
        "    log_metric('empty', float('nan'))\n"
        "    return [1.0 if text != 'fail' else 1 / 0 for text in completions]\n"
        "def g(completions, log_metric, **_):\n"
        "    log_metric('groups', 1)\n"
        "    return [0.0] * len(completions)\n"
    )
    with scorer_of(tmp_path / "mine.py", source, "f g") as scorer:
        [whole, split] = scorer.score([group_of("a b", "c"), group_of("fail", "ok")])
    assert [dict(one.extra) for one in whole.completions] == [
        {"length": 3, "words": ["a", "b"]},
        {"length": 1, "words": ["c"]},
    ]
    assert [dict(one.logged) for one in whole.completions] == [{"mean_length": 2.0, "groups": 1.0}] * 2
    # The call for the group failed: each completion was scored by a call of its own, and the failed one has no log.
    assert [dict(one.extra) for one in split.completions] == [{}, {"length": 2, "words": ["ok"]}]
    assert [dict(one.logged) for one in split.completions] == [{"groups": 1.0}, {"mean_length": 2.0, "groups": 1.0}]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda log: log.log_extra("x", [1]), "log_extra('x', …): got [1]; give a list with 2 values"),
        (lambda log: log.log_extra("x", "ab"), "log_extra('x', …): got 'ab'; give a list with 2 values"),
        (lambda log: log.log_extra("x", 3), "log_extra('x', …): got 3; give a list with 2 values"),
        (lambda log: log.log_extra("", [1, 2]), "log_extra('', …): the name must be text that is not empty"),
        (lambda log: log.log_metric(3, 1.0), "log_metric(3, …): the name must be text that is not empty"),
        (
            lambda log: log.log_metric("a\ud83d", 1.0),
            r"log_metric('a\ud83d', …): the name has half of a character (a lone surrogate)",
        ),
        (lambda log: log.log_metric("x", "1"), "log_metric('x', …): got '1'; give a number"),
        (lambda log: log.log_metric("x", [1.0]), "log_metric('x', …): got [1.0]; give a number"),
    ],
)
def test_wrong_logs_are_refused_in_one_line(call, says: str) -> None:
    with pytest.raises(GrpoError) as caught:
        call(CallLog(2))
    assert str(caught.value) == says


def test_a_wrong_log_stops_the_run_with_function_and_completion(tmp_path: Path) -> None:
    source = "def f(completions, log_extra):\n    log_extra('x', [1])\n    return [1.0 for _ in completions]\n"
    with scorer_of(tmp_path / "mine.py", source, "f") as scorer, pytest.raises(GrpoError) as caught:
        scorer.score([group_of("a", "b")])
    where = f"reward {tmp_path / 'mine.py'}:f, problem p, completion 0 ('a')"
    assert str(caught.value) == f"{where}: log_extra('x', …): got [1]; give a list with 2 values"


def test_halves_of_characters_are_logged_as_escapes() -> None:
    log = CallLog(1)
    log.log_extra("x", [{"a\ud83d": ["\ud83d"]}])
    assert log.row(0) == {"x": {r"a\ud83d": [r"\ud83d"]}}


def test_a_metric_that_is_not_finite_is_left_out_of_the_mean() -> None:
    log = CallLog(1)
    for value in (1.0, math.nan, math.inf, 2.0):
        log.log_metric("x", value)
    log.log_metric("y", math.nan)
    assert log.means() == {"x": 1.5}
