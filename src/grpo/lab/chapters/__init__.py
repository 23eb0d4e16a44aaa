"""The chapters: interactive explanations of GRPO. Each is a module of this folder, served over HTTP.

A chapter has `ANSWERS` (key -> function of the query), `SOURCES` (key -> the function whose source a panel shows) and
`TRIALS` (name -> a trial, as `grpo.lab.trials.spec` reads it). Numbers come from the functions that train.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import grpo
from grpo.errors import GrpoError
from grpo.lab.answer import Answer

CHAPTERS = ("why", "group", "advantage", "loss", "credit", "costs", "train", "turns", "notation")


# Requests that import the same modules in another order can leave one of them with half of transformers.
_importing = threading.Lock()


class UnknownAnswerError(GrpoError):
    """No chapter has an answer, source or trial with this name."""


def chapter(slug: str) -> ModuleType:
    if slug not in CHAPTERS:
        raise UnknownAnswerError(f"no chapter {slug[:40]!r}; there are {', '.join(CHAPTERS)}")
    with _importing:
        return import_module(f"grpo.lab.chapters.{slug}")


def answer(slug: str, key: str, query: Mapping[str, str]) -> Any:
    answers: dict[str, Callable[[Mapping[str, str]], Any]] = chapter(slug).ANSWERS
    if key not in answers:
        raise UnknownAnswerError(f"chapter {slug} has no answer {key[:40]!r}")
    return answers[key](query)


def source(slug: str, key: str) -> dict[str, Any]:
    """The source of a function that a chapter uses."""
    sources: dict[str, Callable[..., Any]] = chapter(slug).SOURCES
    if key not in sources:
        raise UnknownAnswerError(f"chapter {slug} shows no source {key[:40]!r}")
    function = inspect.unwrap(sources[key])
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getsourcefile(function) or "").relative_to(Path(grpo.__file__).parents[1])
    name = f"{function.__module__}:{function.__qualname__}"
    return {"name": name, "file": file.as_posix(), "line": first, "text": "".join(lines)}


def trial_named(name: str) -> dict[str, Any]:
    """The chapter trial with this name."""
    for slug in CHAPTERS:
        trials: dict[str, dict[str, Any]] = chapter(slug).TRIALS
        if name in trials:
            return {**trials[name], "name": name}
    raise UnknownAnswerError(f"no chapter has a trial {name[:40]!r}")


def all_trials() -> dict[str, dict[str, Any]]:
    return {name: trial_named(name) for slug in CHAPTERS for name in chapter(slug).TRIALS}


def rewards() -> tuple[str, ...]:
    """The rewards that a trial may name: those of the chapters' trials."""
    settings = [arm["settings"] for trial in all_trials().values() for arm in trial["arms"]]
    return tuple(sorted({each["reward"] for each in settings if "reward" in each}))


def routes() -> list[Route]:
    def answering(question: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return Answer(question(request))
            except UnknownAnswerError as problem:
                return Answer({"error": str(problem)}, 404)
            except GrpoError as problem:
                return Answer({"error": str(problem)}, 400)

        return respond

    def about(request: Request) -> Any:
        return answer(request.path_params["slug"], request.path_params["key"], request.query_params)

    def text(request: Request) -> Any:
        return source(request.path_params["slug"], request.path_params["key"])

    return [
        Route("/api/chapters/{slug}/source/{key}", answering(text)),
        Route("/api/chapters/{slug}/{key}", answering(about)),
    ]
