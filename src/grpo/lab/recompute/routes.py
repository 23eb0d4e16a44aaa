"""Routes of recomputations: state, start and cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grpo.errors import GrpoError
from grpo.lab.answer import Answer
from grpo.lab.catalogue import Catalogue, UnknownRunError
from grpo.lab.recompute.jobs import Job, Jobs, Place
from grpo.lab.trials.runner import BusyError
from grpo.record.store import Run

PATH = "/api/runs/{run}/steps/{step:index}/groups/{group:index}/recompute"


def place_of(run: Run, step: int, group: int) -> Place:
    return Place(run.path.parent, run.name, step, group, str(run.meta("created")))


def state_of(job: Job | None) -> dict[str, Any]:
    if job is None:
        return {"status": "none"}
    with job.lock:
        about = {name: value for name, value in job.result.items() if name != "rows"}
        return {"status": job.status, "error": job.error, "done": job.done, "total": job.total, **about}


def routes(catalogue: Catalogue, jobs: Jobs) -> list[Route]:
    def answering(act: Callable[[Place], Job | None]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            from grpo.lab.recompute.values import source

            step, group = request.path_params["step"], request.path_params["group"]
            try:
                with catalogue.open(request.path_params["run"]) as run:
                    return Answer(source(run, step) | state_of(act(place_of(run, step, group))))
            except GrpoError as problem:
                status = {UnknownRunError: 404, BusyError: 409}.get(type(problem), 400)
                return Answer({"error": str(problem)}, status)

        return answer

    return [
        Route(PATH, answering(jobs.find)),
        Route(PATH, answering(jobs.start), methods=["POST"]),
        Route(f"{PATH}/cancel", answering(jobs.cancel), methods=["POST"]),
    ]
