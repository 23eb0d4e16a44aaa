"""Reward functions: parses the field `reward`, loads the functions and calls them.

signature.py decides how a function is called:

    def reward(completions, answer, **columns): ...     # as in TRL: lists in, a list out; may be async
    def reward(problem, text): ...                      # one completion in, a number out
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.rewards.call_log import CallLog, is_list
from grpo.rewards.place import Place
from grpo.rewards.pool.invoke import Outcome, Request
from grpo.rewards.signature import OF_THE_TRAINER, Signature, columns_of
from grpo.tasks.handed_over import refuse_recorded
from grpo.types import chat


@dataclass(frozen=True)
class Spec:
    """One entry of the field `reward`.

    >>> parse("mine.py:close*0.5, trl.rewards:get_soft_overlong_punishment(48, 16)")
    [Spec(source='mine.py', name='close', weight=0.5), Spec(source='trl.rewards', \
name='get_soft_overlong_punishment(48, 16)', weight=1.0)]
    """

    source: str
    """A file, a module, python for a function handed over, or task, model or judge."""
    name: str
    weight: float
    number: int = field(default=1, repr=False)
    """Counts the judges, and the reward models of one name."""

    def __str__(self) -> str:
        return f"{self.source}:{self.name}" if self.name else self.source

    @property
    def is_function(self) -> bool:
        return self.source not in ("task", "model", "judge")

    @property
    def part(self) -> str:
        """The name its values are recorded under; a task names its parts itself."""
        if self.source not in ("model", "judge"):
            return self.name.partition("(")[0] or "task"
        name = Path(self.name.partition("#")[0]).name if self.source == "model" else "judge"
        return name if self.number == 1 else f"{name}-{self.number}"


def parse(text: str) -> list[Spec]:
    """The entries of the field, separated by commas outside of parentheses.

    >>> [spec.part for spec in parse("judge:http://a/v1, judge:http://b/v1*0.5, model:x/rm, model:y/rm")]
    ['judge', 'judge-2', 'rm', 'rm-2']
    """
    if not text:
        return []
    entries = [entry.strip() for entry in re.split(r",(?![^()]*\))", text)]
    if "" in entries:
        raise GrpoError(
            f"field reward: entry {entries.index('') + 1} of {text!r} is empty; leave it out, or name a reward"
        )
    specs: list[Spec] = []
    for spec in map(_spec, entries):
        taken = [earlier.part for earlier in specs]
        while spec.source in ("model", "judge") and spec.part in taken:
            spec = replace(spec, number=spec.number + 1)
        specs.append(spec)
    return specs


def _spec(entry: str) -> Spec:
    weight = 1.0
    if found := re.fullmatch(r"(.*\S)\s*\*([^()*]*)", entry, re.DOTALL):  # the last star outside of parentheses
        weight = _weight(found[2].strip(), entry)
        entry = found[1]
    if entry == "task":
        return Spec("task", "", weight)
    source, colon, name = entry.partition(":")
    if not colon or not source or not name:
        known = "file.py:function, module:function, model:ID, judge:URL or task"
        raise GrpoError(f"field reward: {entry!r} is not a valid reward; write {known}")
    if source not in ("model", "judge") and not re.fullmatch(r"[A-Za-z_]\w*(\(.*\))?", name, re.DOTALL):
        raise GrpoError(f"field reward: {name!r} in {entry!r} is not a valid name of a function")
    return Spec(source, name, weight)


def _weight(text: str, entry: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise GrpoError(f"field reward: the weight {text!r} in {entry!r} is not a finite number; write NAME*0.5")
    return weight


class FunctionReward:
    """A function. Of one from a file or a module, a worker process gets the name, and imports it."""

    batched = True
    """Known once the function is loaded."""
    required: tuple[str, ...] = ()

    def __init__(self, spec: Spec, function: Callable[..., Any] | None = None):
        self.spec, self.name, self.function = spec, spec.part, function

    def load(self) -> None:
        self.function = self.function or load_function(self.spec)
        self.signature = Signature.of(self.function, str(self.spec))
        self.batched = self.signature.batched
        self.required = self.signature.required if self.batched else ()
        self.other_form: bool | None = None
        """Whether it takes messages where rows are texts, or the reverse; None until a call has succeeded."""

    def __call__(self, request: Request) -> list[Outcome]:
        if not self.batched:
            given = [self.signature.accepted({"problem": request.problem, "text": text}) for text in request.texts]
            return [Outcome({self.name: self._value(arguments)}) for arguments in given]
        values, log = self._values(request)
        if not is_list(values):
            raise GrpoError(f"returned {values!r:.200}; return a list with a number for each completion")
        logged = log.means()
        return [Outcome({self.name: value}, extra=log.row(i), logged=logged) for i, value in enumerate(values)]

    def _values(self, request: Request) -> tuple[Any, CallLog]:
        """Passes texts or messages, whichever the row has. If the function fails on these, passes the other form:
        `text.strip()` fails on a list of messages, and `completion[0]["content"]` on a text."""
        errors = []
        for other_form in (False, True) if self.other_form is None else (self.other_form,):
            log = CallLog(len(request.texts))
            arguments = trl_arguments(request, log, messages=request.problem.conversational != other_form)
            # A column that this row lacks and others have is None, as in a `datasets.Dataset`.
            missing = {name: [None] * len(request.texts) for name in self.required if name not in arguments}
            try:
                values = self._value(self.signature.accepted({**arguments, **missing}))
            except (TypeError, AttributeError) as error:  # border: user code that expects the other form
                errors.append(error)
            else:
                self.other_form = other_form
                return values, log
        raise errors[0]

    def _value(self, arguments: dict[str, Any]) -> Any:
        assert self.function is not None
        return awaited(self.function(**arguments))


def awaited(result: Any) -> Any:
    """The result of a function that may be async."""
    return event_loop().run(_coroutine(result)) if inspect.isawaitable(result) else result


@cache
def event_loop() -> asyncio.Runner:
    """The event loop of this worker process. All calls share it, so that a client or lock of the file lives on."""
    return asyncio.Runner()


async def _coroutine(result: Any) -> Any:
    return await result


def trl_arguments(request: Request, log: CallLog, *, messages: bool) -> dict[str, Any]:
    """The keyword arguments of TRL's trainer, with prompts and completions as lists of messages or as texts."""
    problem, count = request.problem, len(request.texts)
    if messages:
        prompt: Any = [dict(message) for message in problem.messages or chat(problem.prompt)]
        completions: Any = [
            list(request.conversation(row)) or [{"role": "assistant", "content": text}]
            for row, text in enumerate(request.texts)
        ]
    else:
        prompt, completions = problem.prompt, list(request.texts)
    arguments = {
        "prompts": [prompt] * count,
        "completions": completions,
        "completion_ids": [list(tokens) for tokens in request.tokens] or [[]] * count,
        **{name: [value] * count for name, value in columns_of(problem).items()},
        "trainer_state": request.state,
        "log_extra": log.log_extra,
        "log_metric": log.log_metric,
    }
    if not request.environments:
        return arguments
    known = {name: value for name, value in arguments.items() if name not in OF_THE_TRAINER}
    return {**known, "environments": list(request.environments)}


def load_function(spec: Spec) -> Callable[..., Any]:
    """The function, or for `name(arguments)` the function that this call returns."""
    refuse_recorded("reward", str(spec), "name another with --reward, such as --reward task")
    name, parenthesis, arguments = spec.name.partition("(")
    found: Callable[..., Any] = Place(spec.source, name, "reward").load()
    if not parenthesis and inspect.isclass(found):
        raise GrpoError(f"reward {spec}: is a class; name an object, such as {spec.source}:{name}()")
    if not parenthesis:
        return found
    try:
        call = ast.parse(f"f({arguments}", mode="eval").body
        assert isinstance(call, ast.Call)
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return found(*positional, **named)
    except GrpoError as error:
        raise GrpoError(f"reward {spec}: {error}") from None
    except Exception as error:  # border: user code may raise anything
        raise GrpoError(f"reward {spec}: the call failed: {type(error).__name__}: {error}") from error
