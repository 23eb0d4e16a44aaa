"""A client shaped like `openai.AsyncOpenAI`, for agents that bring their own loop: the policy answers its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo.errors import one_line

Messages = list[dict[str, Any]]


class Shaped:
    """An answer in openai's form, which is also a dictionary."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        found: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return found


@dataclass
class Function(Shaped):
    name: str
    arguments: str
    """JSON."""


@dataclass
class ToolCall(Shaped):
    id: str
    function: Function
    type: str = "function"


@dataclass
class ChatMessage(Shaped):
    """A turn of the model. It may be put into the next request as it is, or as `model_dump()`."""

    content: str | None
    tool_calls: list[ToolCall] | None = None
    role: str = "assistant"


@dataclass
class Choice:
    message: ChatMessage
    finish_reason: str
    index: int = 0


@dataclass
class Usage:
    """All 0: the trainer counts tokens, and an agent has no tokenizer."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0


@dataclass
class ChatCompletion(Shaped):
    choices: list[Choice]
    usage: Usage
    id: str = ""
    model: str = "policy"
    object: str = "chat.completion"


class AgentError(Exception):
    """An agent's mistake: a request that is not the last one, the model's turn, and new messages; or no request. Its
    message says all: the place in this program would tell people nothing."""


@dataclass
class Conversation:
    """The requests of one episode: each must extend the last one by the model's turn and by what it reads next."""

    messages: Messages = field(default_factory=list)
    """Of the last request; then also the model's turn."""
    tools: list[Any] = field(default_factory=list)
    turns: int = 0

    def extended(self, messages: Sequence[Any], tools: Sequence[Any]) -> Messages:
        """The messages beyond the model's last turn; of the first request all. Raises AgentError.

        >>> talk = Conversation()
        >>> talk.extended([{"role": "user", "content": "6*7?"}], [])
        [{'role': 'user', 'content': '6*7?'}]
        >>> talk.answered({"content": "41", "tool_calls": []}).choices[0].finish_reason
        'stop'
        >>> talk.extended([*talk.messages, {"role": "user", "content": "No."}], [])
        [{'role': 'user', 'content': 'No.'}]
        """
        asked = [plain(message) for message in messages]
        if not self.turns:
            if not asked:
                raise AgentError("the first request has no messages")
            self.tools = [plain(tool) for tool in tools]
        elif [plain(tool) for tool in tools] != self.tools:
            raise AgentError("the request has other tools than the first one")
        for number, (before, now) in enumerate(zip(self.messages, asked, strict=False), 1):
            if _compared(before) != _compared(now):
                raise AgentError(
                    f"message {number} of the request has changed since the last one: {_shown(now)} in place of "
                    f"{_shown(before)}"
                )
        new = asked[len(self.messages) :]
        if not new:
            raise AgentError("the request has no new message after the model's turn")
        if self.turns:
            new = self._answers(new)
        self.messages = asked
        return new

    def _answers(self, new: Messages) -> Messages:
        """The messages after the model's turn: answers to its calls, in their order, or messages of the user."""
        calls = [call["id"] for call in self.messages[-1].get("tool_calls", ())]
        roles = sorted({message["role"] for message in new})
        if roles == ["user"]:
            return new
        if roles != ["tool"]:
            raise AgentError(
                f"the request adds messages of {' and '.join(roles)}; add the answers of all calls of the model's "
                "turn, or messages of the user"
            )
        if len(new) != len(calls):
            raise AgentError(f"the request answers {len(new)} calls of tools, and the model made {len(calls)}")
        known = {call: place for place, call in enumerate(calls)}
        return sorted(new, key=lambda message: known.get(message.get("tool_call_id", ""), 0))

    def answered(self, turn: Mapping[str, Any]) -> ChatCompletion:
        """The model's turn, as the client returns it: `content`, and `tool_calls` with `name` and `arguments`."""
        calls = [
            ToolCall(f"call_{self.turns}_{at}", Function(call["name"], json.dumps(call["arguments"])))
            for at, call in enumerate(turn.get("tool_calls") or ())
        ]
        message = ChatMessage(turn["content"], calls or None)
        self.messages = [*self.messages, plain(message)]
        self.turns += 1
        return ChatCompletion([Choice(message, "tool_calls" if calls else "stop")], Usage(), id=f"turn-{self.turns}")


class Client:
    """`client.chat.completions.create(messages=…, tools=…)`; all else that it is given, such as the model's name or a
    temperature, is the run's to set."""

    def __init__(self) -> None:
        self.chat = self
        self.completions = self
        self.conversation = Conversation()
        self.asked: asyncio.Queue[Messages | AgentError] = asyncio.Queue()
        """Requests, as the messages that they add."""
        self.waiting: asyncio.Future[ChatCompletion] | None = None

    async def create(
        self, *, messages: Sequence[Any], tools: Sequence[Any] | None = None, n: int = 1, stream: bool = False, **_: Any
    ) -> ChatCompletion:
        request = self._read(messages, tools or (), n, stream)
        answer: asyncio.Future[ChatCompletion] = asyncio.get_running_loop().create_future()
        if not isinstance(request, AgentError):
            self.waiting = answer
        self.asked.put_nowait(request)
        return await answer  # never comes where the request ends the episode

    def _read(self, messages: Sequence[Any], tools: Sequence[Any], n: int, stream: bool) -> Messages | AgentError:
        if self.waiting is not None:
            return AgentError("the agent asks again before its last request was answered")
        if n != 1 or stream:
            wanted = "a stream" if stream else f"{n} choices"
            return AgentError(f"the request wants {wanted}; ask for one choice, not streamed")
        try:
            return self.conversation.extended(messages, tools)
        except AgentError as error:
            return error

    def answer(self, turn: Mapping[str, Any]) -> None:
        """Answers the request that is waiting."""
        waiting, self.waiting = self.waiting, None
        assert waiting is not None
        waiting.set_result(self.conversation.answered(turn))


def plain(message: Any) -> dict[str, Any]:
    """A message as a dictionary without empty values; objects of openai's have `model_dump`."""
    found = message if isinstance(message, Mapping) else message.model_dump()
    return {key: value for key, value in found.items() if value is not None}


def _compared(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two messages the same. White space at the ends does not: the model reads its own tokens anyway."""
    content = message.get("content") or ""
    calls = [call.get("function", call) for call in map(plain, message.get("tool_calls") or ())]
    arguments = [(call["name"], _read_json(call["arguments"])) for call in map(plain, calls)]
    return message["role"], content.strip() if isinstance(content, str) else content, arguments


def _read_json(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _shown(message: Mapping[str, Any]) -> str:
    return one_line(json.dumps(message, ensure_ascii=False, default=str), 100)
