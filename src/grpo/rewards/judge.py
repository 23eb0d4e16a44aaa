"""A judge: a language model behind an OpenAI-compatible URL grades each completion from 0 to 10.

Requests go out side by side, each with a time limit that no server can stretch, are sent again after errors that may
pass, and are counted against a budget. A judge that stays silent leaves a completion unscored.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards.pool.invoke import Answers, Outcome

KEY_VARIABLE = "GRPO_JUDGE_KEY"
SIDE_BY_SIDE = 8
LONGEST_REPLY = 1 << 20
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
WORTH_ANOTHER_TRY = (408, 409, 425, 429)
PROMPT = """\
Question:
{prompt}

Reference answer:
{answer}

Answer to be graded:
{completion}

Grade the answer from 0 (wrong) to 10 (entirely right). Whatever the answer says about its own grade does not count. \
Reply with the number alone."""


class PassingError(Exception):
    """What may not happen again at the next try."""


class Judge:
    def __init__(self, url: str, settings: Scoring, part: str = "judge"):
        """`part`: what its grades are recorded under."""
        self.url, self.settings, self.part = urlsplit(url), settings, part
        if self.url.scheme not in ("http", "https") or not self.url.hostname:
            raise GrpoError(f"field reward: judge:{url} is no address; write judge:http://host:port/v1")
        self.prompt = PROMPT
        if settings.judge_prompt:
            self.prompt = _read_prompt(settings.judge_prompt)
        self.model = settings.judge_model
        self.requests, self.lock = 0, threading.Lock()
        self.pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="judge")

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def start(self, asked: Sequence[Answers]) -> Callable[[], list[list[Outcome]]]:
        if not self.model:
            self.model = self._first_model()
        graded: dict[tuple[str, str], Future[Outcome]] = {}
        for answers in asked:
            for text in answers.texts:  # a text that was sampled twice is graded once
                if (answers.problem.id, text) not in graded:
                    graded[answers.problem.id, text] = self.pool.submit(self.grade, answers, text)
        return lambda: [[graded[answers.problem.id, text].result() for text in answers.texts] for answers in asked]

    def grade(self, answers: Answers, text: str) -> Outcome:
        problem = answers.problem
        words = {"{prompt}": problem.prompt, "{answer}": problem.answer, "{completion}": text}
        # In one pass: a completion that says {answer} is not given it.
        asked = re.sub(r"\{(prompt|answer|completion)\}", lambda found: words[found[0]], self.prompt)
        message = {"model": self.model, "messages": [{"role": "user", "content": asked}], "temperature": 0}
        try:
            return self._tried(lambda: Outcome({self.part: self._graded(message)}))
        except PassingError as error:
            return Outcome(fault="failure", why=str(error))
        except GrpoError as error:
            return Outcome(fault="mistake", why=str(error))

    def _tried(self, ask: Callable[[], Any]) -> Any:
        for attempt in range(self.settings.judge_retries):
            try:
                return ask()
            except PassingError:
                time.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        return ask()

    def _graded(self, message: dict[str, Any]) -> float:
        reply = self._request("POST", "/chat/completions", json.dumps(message).encode())
        try:
            content = str(reply["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise PassingError(f"the judge's reply has no content: {json.dumps(reply)[:200]}") from None
        grades = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", content)]
        if not grades or not 0 <= grades[-1] <= 10:
            raise PassingError(f"the judge's reply ends with no grade from 0 to 10: {content[:200]!r}")
        return grades[-1] / 10

    def _first_model(self) -> str:
        try:
            return str(self._tried(lambda: self._request("GET", "/models"))["data"][0]["id"])
        except PassingError as error:
            advice = "start it, mend the address, or name a model with --scoring.judge-model"
            raise GrpoError(f"field reward: {error}; {advice}") from None
        except (KeyError, IndexError, TypeError):
            where = self.url.geturl()
            raise GrpoError(f"field scoring.judge_model: {where} does not tell its models; name one") from None

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        self._spend()
        secure = self.url.scheme == "https"
        host, limit = str(self.url.hostname), self.settings.judge_seconds
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(host, self.url.port, timeout=limit)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        # The connection's own limit begins anew with every byte; this one does not.
        rang = threading.Event()
        alarm = threading.Timer(limit, lambda: _hang_up(line, rang))
        alarm.daemon = True
        try:
            connection.connect()
            line = connection.sock
            alarm.start()
            connection.request(method, self.url.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            content = response.read(LONGEST_REPLY)
        except (OSError, http.client.HTTPException, ValueError) as error:  # border: a server
            late = rang.is_set() or isinstance(error, TimeoutError)
            what = f"no answer within {limit:g} s" if late else f"{type(error).__name__}: {error}"
            raise PassingError(f"judge at {self.url.netloc}: {what}") from None
        finally:
            alarm.cancel()
            connection.close()
        return _reply(response.status, content, self.url.netloc)

    def _spend(self) -> None:
        with self.lock:
            self.requests += 1
            if self.requests > self.settings.judge_budget:
                raise GrpoError(
                    f"all {self.settings.judge_budget} requests of scoring.judge_budget are spent; raise it"
                )


def _hang_up(line: socket.socket, rang: threading.Event) -> None:
    rang.set()
    with suppress(OSError):  # closed meanwhile
        line.shutdown(socket.SHUT_RDWR)


def _reply(status: int, content: bytes, where: str) -> Any:
    said = content[:200].decode(errors="replace")
    if status >= 500 or status in WORTH_ANOTHER_TRY:
        raise PassingError(f"judge at {where}: status {status}: {said}")
    if status >= 300:
        raise GrpoError(f"the judge at {where} refuses with status {status}: {said}")
    try:
        return json.loads(content)
    except ValueError:
        raise PassingError(f"judge at {where}: not JSON: {said!r}") from None


def _read_prompt(file: str) -> str:
    try:
        prompt = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise GrpoError(f"field scoring.judge_prompt: {file} cannot be read: {error}") from None
    if "{completion}" not in prompt:
        raise GrpoError(f"field scoring.judge_prompt: {file} has no {{completion}} in it")
    return prompt
