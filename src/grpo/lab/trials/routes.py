"""Routes of trials: the only ones of the lab that start or end anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from grpo.errors import GrpoError
from grpo.lab.answer import Answer
from grpo.lab.body import json_body
from grpo.lab.chapters import rewards, trial_named
from grpo.lab.trials.recorded import recorded
from grpo.lab.trials.runner import BusyError, Runner, Running, UnknownTrialError

SECONDS_BETWEEN_POLLS = 0.3
POLLS_BETWEEN_KEEPALIVES = 30


def routes(runner: Runner) -> list[Route]:
    def failed(problem: GrpoError) -> Answer:
        running = runner.current()
        about = {"running": running.about()} if isinstance(problem, BusyError) and running else {}
        status = 409 if isinstance(problem, BusyError) else 404 if isinstance(problem, UnknownTrialError) else 400
        return Answer({"error": str(problem), **about}, status)

    async def start(request: Request) -> Response:
        try:
            data = await json_body(request, "trial")
            started = await run_in_threadpool(runner.start, data, rewards())
        except GrpoError as problem:
            return failed(problem)
        return Answer(started.about(), 201)

    def cancel(request: Request) -> Response:
        try:
            trial = runner.find(request.path_params["id"])
        except GrpoError as problem:
            return failed(problem)
        trial.cancel()
        return Answer(trial.about())

    def running(request: Request) -> Response:
        # A page with a trial asks this when it is opened: its reader may train soon.
        runner.prepare()
        now = runner.current()
        return Answer({"running": now.about() if now else None})

    def named(request: Request) -> Response:
        try:
            name = request.path_params["name"]
            return Answer({"trial": trial_named(name), "recorded": recorded(name)})
        except GrpoError as problem:
            return Answer({"error": str(problem)}, 404)

    async def live(request: Request) -> Response:
        try:
            trial = runner.find(request.path_params["id"])
        except GrpoError as problem:
            return failed(problem)
        return StreamingResponse(
            _events(trial, request, runner), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    return [
        Route("/api/trials", start, methods=["POST"]),
        Route("/api/trials", running),
        Route("/api/trials/named/{name}", named),
        Route("/api/trials/{id}/cancel", cancel, methods=["POST"]),
        Route("/api/trials/{id}/events", live),
    ]


async def _events(trial: Running, request: Request, runner: Runner) -> AsyncIterator[str]:
    """Yields the trial's state now and after every change, until it ends or the client disconnects. A client that sees
    the end may train again."""
    sent, polls = -1, 0
    while not await request.is_disconnected():
        if trial.version != sent:
            state: dict[str, Any] = await asyncio.to_thread(trial.state)
            sent = state["version"]
            yield f"data: {Answer.text(state)}\n\n"
            if state["status"] != "running":
                await asyncio.to_thread(runner.prepare)
                return
        elif polls % POLLS_BETWEEN_KEEPALIVES == 0:
            yield ": keep-alive\n\n"
        polls += 1
        await asyncio.sleep(SECONDS_BETWEEN_POLLS)
