"""A judge behind a server that fails, hangs, dribbles and talks nonsense."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config import Config, Scoring
from grpo.config.sections import Loss
from grpo.errors import GrpoError
from grpo.rewards import Scorer, judge
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.credit import part_weights
from grpo.types import Completion, Group, Problem


class Server(http.server.ThreadingHTTPServer):
    """Answers as the script for the completion says, one entry for each request; the last goes on for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts: dict[str, list[Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock, self.over = threading.Lock(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self.say(200, json.dumps({"data": [{"id": "grader"}, {"id": "other"}]}))

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = message["messages"][0]["content"]
        with self.server.lock:
            self.server.asked.append(message)
            self.server.headers.append(dict(self.headers))
            [name] = [name for name in self.server.scripts if f"<{name}>" in content]
            script = self.server.scripts[name]
            step = script.pop(0) if len(script) > 1 else script[0]
        if step == "hang":
            self.server.over.wait()
        elif step == "dribble":
            self.send_response(200)
            self.end_headers()
            while not self.server.over.wait(0.05):
                self.wfile.write(b" ")
        elif step == "dribble headers":
            self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
            while not self.server.over.wait(0.05):
                self.wfile.write(b"x")
        elif isinstance(step, int):
            self.say(step, "no")
        elif step.startswith("raw:"):
            self.say(200, step.removeprefix("raw:"))
        else:
            self.say(200, json.dumps({"choices": [{"message": {"content": step}}]}))

    def say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the judge has hung up
            return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(judge, "FIRST_PAUSE", 0.001)
    with Server() as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening
        listening.over.set()
        listening.shutdown()
        thread.join()


def graded(server: Server, scripts: dict[str, list[Any]], **settings: Any) -> list[Completion]:
    server.scripts = scripts
    nothing = np.zeros(0)
    completions = tuple(Completion(f"<{name}>", nothing, nothing, "stop") for name in scripts)
    group = Group(Problem("p", "What is 6*7?", "42"), nothing, completions, 0)
    scoring = Scoring(**{"judge_seconds": 3.0, "judge_retries": 2, "most_failures": 1.0, **settings})
    with Scorer(Arithmetic(), f"judge:{server.url}", scoring) as scorer:
        return list(scorer.score([group])[0].completions)


def test_grades_become_rewards(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_KEY", "sesame")
    done = graded(server, {"good": ["10"], "half": ["I would say 5"], "bad": ["0"], "fine": ["Not 10 but 7.5"]})
    assert [c.reward for c in done] == [1.0, 0.5, 0.0, 0.75]
    assert {message["model"] for message in server.asked} == {"grader"}
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sesame"}
    [content] = [m["messages"][0]["content"] for m in server.asked if "<good>" in m["messages"][0]["content"]]
    assert "Question:\nWhat is 6*7?\n" in content
    assert "Reference answer:\n42\n" in content


def test_errors_that_pass_are_tried_again(server: Server) -> None:
    done = graded(
        server,
        {
            "500s": [500, 503, "8"],
            "busy": [429, "9"],
            "junk": ["raw:<html>", "raw:{", "3"],
            "empty": ['raw:{"choices": []}', "2"],
            "words": ["splendid", "11", "1"],
            "hangs": ["hang", "10"],
            "dribbles": ["dribble", "4"],
        },
    )
    assert [c.reward for c in done] == [0.8, 0.9, 0.3, 0.2, 0.1, 1.0, 0.4]
    assert [c.why for c in done] == [""] * 7
    assert len(server.asked) == 3 + 2 + 3 + 2 + 3 + 2 + 2


def test_errors_that_stay_leave_a_completion_unscored(server: Server) -> None:
    scripts = {"down": [500], "hangs": ["hang"], "slow": ["dribble headers"], "junk": ["raw:nonsense"], "fine": ["5"]}
    done = graded(server, scripts, judge_retries=1, judge_seconds=1.0)
    assert [c.reward for c in done] == [None, None, None, None, 0.5]
    reasons = [c.why.partition(f"judge at 127.0.0.1:{server.server_port}: ")[2] for c in done]
    assert reasons == ["status 500: no", *["no answer within 1 s"] * 2, "not JSON: 'nonsense'", ""]
    assert all(c.why.startswith(f"failure in reward judge:{server.url}: ") for c in done[:4])
    assert len(server.asked) == 2 + 2 + 2 + 2 + 1


def test_no_server_at_all() -> None:
    with Server() as closed:
        pass
    with pytest.raises(GrpoError, match=r"field reward: judge at .*ConnectError.*; start the server"):
        graded(closed, {"x": ["1"]}, judge_retries=0)
    [done] = graded(closed, {"x": ["1"]}, judge_model="grader", judge_retries=0)
    assert done.reward is None
    assert "ConnectError" in done.why


def test_a_key_that_no_header_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_KEY", "sésame")
    with pytest.raises(GrpoError, match="environment variable GRPO_JUDGE_KEY: must hold a key of ASCII characters"):
        Scorer(Arithmetic(), "judge:http://localhost/v1")


def test_a_refusal_stops_the_run(server: Server) -> None:
    with pytest.raises(GrpoError, match="refused with status 401: no"):
        graded(server, {"x": [401]})
    assert len(server.asked) == 1


def test_a_judge_that_mostly_fails_stops_the_run(server: Server) -> None:
    names = {f"x{i}": [500] for i in range(11)}
    with pytest.raises(GrpoError, match=r"judge:.* failed on 11 of the last 11 completions, more than scoring\.most"):
        graded(server, names, judge_retries=0, most_failures=0.1)


def test_the_budget_is_kept(server: Server) -> None:
    with pytest.raises(GrpoError, match=r"field scoring.judge_budget: all 3 requests are used up"):
        graded(server, {"x": [500]}, judge_model="grader", judge_budget=3, judge_retries=9)
    assert len(server.asked) == 3


def test_the_same_text_is_asked_about_once(server: Server) -> None:
    server.scripts = {"x": ["5"]}
    nothing = np.zeros(0)
    group = Group(Problem("p", "?", ""), nothing, (Completion("<x>", nothing, nothing, "stop"),) * 6, 0)
    with Scorer(Arithmetic(), f"judge:{server.url}", Scoring(judge_model="grader")) as scorer:
        assert [c.reward for c in scorer.score([group])[0].completions] == [0.5] * 6
    assert len(server.asked) == 1


def test_a_prompt_of_ones_own(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text('{"grade": {completion} against {answer}}')
    [done] = graded(server, {"{answer}": ["6"]}, judge_prompt=str(file))
    assert done.reward == 0.6
    # What a completion writes is not filled in.
    assert server.asked[0]["messages"][0]["content"] == '{"grade": <{answer}> against 42}'
    file.write_text("nothing to grade")
    with pytest.raises(GrpoError, match=r"prompt\.txt lacks {completion}"):
        graded(server, {"x": ["1"]}, judge_prompt=str(file))
    with pytest.raises(GrpoError, match=r"field scoring.judge_prompt: absent.txt cannot be read"):
        graded(server, {"x": ["1"]}, judge_prompt="absent.txt")


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(GrpoError, match="judge:ftp://x is not a valid address"):
        Scorer(Arithmetic(), "judge:ftp://x")


def test_two_judges_have_parts_of_their_own(server: Server) -> None:
    """Each grade is recorded, and rewarded with its own weight."""
    server.scripts = {"x": ["4", "10"]}  # the first request gets 4
    nothing = np.zeros(0)
    group = Group(Problem("p", "?", ""), nothing, (Completion("<x>", nothing, nothing, "stop"),), 0)
    reward = f"judge:{server.url}*1, judge:{server.url}*2"
    with Scorer(Arithmetic(), reward, Scoring(judge_model="grader")) as scorer:
        [[done]] = [group.completions for group in scorer.score([group])]
    assert sorted(done.parts) == ["judge", "judge-2"]
    assert sorted(done.parts.values()) == [0.4, 1.0]
    assert done.reward == done.parts["judge"] + 2 * done.parts["judge-2"]
    config = Config(reward=reward, loss=Loss(weights="judge-2=0.5"))
    assert [part_weights(config)(part) for part in ("judge", "judge-2")] == [1.0, 1.0]


def test_it_works_while_something_else_goes_on(server: Server) -> None:
    """Requests are out before anybody waits for them."""
    server.scripts = {"x": ["5"]}
    nothing = np.zeros(0)
    group = Group(Problem("p", "?", ""), nothing, (Completion("<x>", nothing, nothing, "stop"),), 0)
    with Scorer(Arithmetic(), f"judge:{server.url}", Scoring(judge_model="grader")) as scorer:
        pending = scorer.submit([group])
        deadline = time.monotonic() + 60
        while not server.asked:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert pending.collect()[0].completions[0].reward == 0.5
