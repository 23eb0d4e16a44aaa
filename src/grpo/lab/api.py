"""The JSON API: one function per route. Each reads a record opened read-only; only notes are written, to a file of
their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from grpo.errors import DamagedRecordError, GrpoError
from grpo.lab import first_round, reading
from grpo.lab.answer import Answer
from grpo.lab.body import json_body
from grpo.lab.catalogue import Catalogue, UnknownRunError
from grpo.lab.compare import AXES, compare
from grpo.lab.findings import findings
from grpo.lab.live import events
from grpo.lab.nano_files import nano_files
from grpo.lab.prompts import across, prompts
from grpo.lab.recompute.jobs import Jobs
from grpo.lab.recompute.routes import place_of
from grpo.lab.search import Query, search
from grpo.record.metrics import is_metric
from grpo.record.store import Run

POINTS = 400
MOST_POINTS = 1000
MOST_COMPARED = 12
MOST_METRICS = 24


class IndexConvertor(IntegerConvertor):
    """A whole number that SQLite can store; an address with a longer one does not exist."""

    regex = "[0-9]{1,18}"


register_url_convertor("index", IndexConvertor())


def failure(problem: GrpoError) -> Answer:
    status = {UnknownRunError: 404, DamagedRecordError: 503}.get(type(problem), 400)
    return Answer({"error": str(problem)}, status)


def unreadable(request: Request, problem: Exception) -> Answer:
    """The answer to an error of SQLite: the file may be damaged, or being written."""
    return Answer({"error": f"the record of this run cannot be read: {problem}"}, 503)


def _points(request: Request) -> int:
    return min(MOST_POINTS, max(2, _whole(request, "points", POINTS)))


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise GrpoError(f"{name}: expected a whole number; got {text[:40]!r}")
    return int(text)


# One run.


def _series(run: Run, request: Request) -> dict[str, Any]:
    wanted = [name for name in request.query_params.get("names", "").split(",") if name]
    return reading.series(run, (wanted or reading.metric_names(run))[:60], _points(request))


def _step(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.groups import step_row

    return step_row(run, request.path_params["step"])


def _group(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.groups import group_row

    return group_row(run, request.path_params["step"], request.path_params["group"])


def _lens(jobs: Jobs, run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.tokens import lens

    step, group, sample = (request.path_params[name] for name in ("step", "group", "sample"))
    return lens(run, step, group, sample, jobs.rows(place_of(run, step, group)))


def _worked(jobs: Jobs, run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.tokens import worked

    step, group, sample, token = (request.path_params[name] for name in ("step", "group", "sample", "token"))
    return worked(run, step, group, sample, token, jobs.rows(place_of(run, step, group)))


def _what_if(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.whatif import what_if

    return what_if(run, request.path_params["step"], request.query_params)


def _signal(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.signal import signal_budget

    return signal_budget(run, min(300, _points(request)))


def _difficulty(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.signal import difficulty

    return difficulty(run, min(150, _points(request)))


def _completions(run: Run, request: Request) -> dict[str, Any]:
    wanted = request.query_params
    return search(run, Query.parse(wanted, _whole(request, "begin", 0) if "begin" in wanted else None))


def _timeline(run: Run, request: Request) -> dict[str, Any]:
    return reading.timeline(run, min(200, _points(request)))


def _episodes(run: Run, request: Request) -> dict[str, Any]:
    from grpo.lab.episodes import by_turns

    return by_turns(run)


ABOUT_A_RUN: dict[str, Callable[[Run, Request], Any]] = {
    "": lambda run, request: reading.overview(run),
    "/series": _series,
    "/signal": _signal,
    "/difficulty": _difficulty,
    "/completions": _completions,
    "/timeline": _timeline,
    "/episodes": _episodes,
    "/findings": lambda run, request: findings(run),
    "/probes": lambda run, request: reading.probes(run),
    "/prompts": lambda run, request: prompts(run),
    "/prompts/{key}": lambda run, request: across(run, request.path_params["key"]),
    "/steps/{step:index}": _step,
    "/steps/{step:index}/spans": lambda run, request: reading.spans_of(run, request.path_params["step"]),
    "/steps/{step:index}/whatif": _what_if,
    "/steps/{step:index}/groups/{group:index}": _group,
}
TOKENS: dict[str, Callable[[Jobs, Run, Request], Any]] = {
    "/steps/{step:index}/groups/{group:index}/tokens/{sample:index}": _lens,
    "/steps/{step:index}/groups/{group:index}/tokens/{sample:index}/{token:index}": _worked,
}
"""Recorded tokens, or recomputed ones."""


def routes(catalogue: Catalogue, jobs: Jobs) -> list[Route]:
    of_runs = ABOUT_A_RUN | {path: partial(question, jobs) for path, question in TOKENS.items()}

    def about_a_run(question: Callable[[Run, Request], Any]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                with catalogue.open(request.path_params["run"]) as run:
                    return Answer(question(run, request))
            except GrpoError as problem:
                return failure(problem)

        return answer

    def list_of_runs(request: Request) -> Response:
        return Answer({"runs": catalogue.listing(), "folder": str(catalogue.folder)})

    def definitions(request: Request) -> Response:
        return Answer(reading.definitions())

    def nano(request: Request) -> Response:
        return Answer(nano_files())

    def scene(request: Request) -> Response:
        return Answer(first_round.recorded())

    def comparison(request: Request) -> Response:
        wanted = request.query_params
        ids = list(dict.fromkeys(name for name in wanted.get("runs", "").split(",") if name))[:MOST_COMPARED]
        metrics = list(dict.fromkeys(wanted.get("metrics", "reward_mean").split(",")))[:MOST_METRICS]
        by = wanted.get("by", "steps")
        if by not in AXES:
            return Answer({"error": f"by: expected one of {', '.join(AXES)}; got {by!r}"}, 400)
        if unknown := [name for name in metrics if not is_metric(name)]:
            return Answer({"error": f"metrics: {unknown[0]!r} is unknown; docs/metrics.md lists all"}, 400)
        try:
            with ExitStack() as stack:
                runs = [(run_id, stack.enter_context(catalogue.open(run_id))) for run_id in ids]
                return Answer(compare(runs, metrics, by, _points(request)))
        except GrpoError as problem:
            return failure(problem)

    async def annotate(request: Request) -> Response:
        try:
            data = await json_body(request, "notes")
            notes = await run_in_threadpool(catalogue.annotate, request.path_params["run"], data)
        except GrpoError as problem:
            return failure(problem)
        return Answer({"tags": notes.tags, "note": notes.note})

    async def live(request: Request) -> Response:
        try:
            run = catalogue.open(request.path_params["run"])
        except GrpoError as problem:
            return failure(problem)
        run.close()
        stream = events(lambda: catalogue.open(request.path_params["run"]), request.is_disconnected)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return [
        Route("/api/runs", list_of_runs),
        Route("/api/metrics", definitions),
        Route("/api/nano", nano),
        Route("/api/scene", scene),
        Route("/api/compare", comparison),
        Route("/api/runs/{run}/events", live),
        Route("/api/runs/{run}/notes", annotate, methods=["POST"]),
        *(Route(f"/api/runs/{{run}}{path}", about_a_run(question)) for path, question in of_runs.items()),
    ]
