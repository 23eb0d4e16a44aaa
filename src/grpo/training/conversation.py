"""Written conversations as episodes, for supervised fine-tuning: the assistant's turns are learned, the rest read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from grpo.episodes.template import ConversationTemplate, Message
from grpo.errors import GrpoError, one_line
from grpo.model.prompt import is_chat
from grpo.tasks.conversation import message_text
from grpo.types import Call, Completion, Observation, Problem


def written_episode(problem: Problem, messages: Sequence[Message], template: ConversationTemplate) -> Completion:
    """The assistant's turns of a conversation as a completion, with the messages between them as its observations.

    `messages` begins and ends with the assistant. Each turn ends with an end token, as a sampled one does.
    """
    chat, tokenizer, end = is_chat(problem, template.tokenizer), template.tokenizer, template.end_token(problem)
    texts: list[str] = []
    tokens: list[int] = []
    observations: list[Observation] = []
    for turn, between in turns_of(messages):
        texts.append(_turn_text(problem, turn, template) if chat else message_text(turn))
        tokens += [*tokenizer(texts[-1], add_special_tokens=False)["input_ids"], end]
        if between:
            read = template.observation(problem, _readable(between, template) if chat else between)
            text = "\n".join(message["content"] for message in between)
            observations.append(Observation(len(tokens), np.array(read, dtype=np.int64), text))
    return Completion(
        texts[-1],
        np.array(tokens, dtype=np.int64),
        np.zeros(len(tokens), dtype=np.float32),
        "stop",
        turns=tuple(texts),
        observations=tuple(observations),
    )


def turns_of(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """(turn of the assistant, the messages up to the next one). Answers of tools get the name of their call.

    >>> call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    >>> answer, said = {"role": "tool", "content": "42"}, {"role": "assistant", "content": "It is 42."}
    >>> [turn, last] = turns_of([call, answer, said])
    >>> turn[1], last[1]
    ([{'role': 'tool', 'content': '42', 'name': 'add'}], [])
    """
    own = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    for start, end in zip(own, [*own[1:], len(messages)], strict=True):
        calls = [call.get("function", call) | {"id": call.get("id")} for call in messages[start].get("tool_calls", ())]
        between = list(messages[start + 1 : end])
        unanswered = iter(calls)
        for at, message in enumerate(between):
            if message["role"] == "tool":
                called: Message = next(unanswered, {})
                called = next(
                    (call for call in calls if call["id"] and call["id"] == message.get("tool_call_id")), called
                )
                between[at] = {**message, "name": message.get("name") or called.get("name", "unknown")}
        yield messages[start], between


def _turn_text(problem: Problem, turn: Message, template: ConversationTemplate) -> str:
    """The turn without its end token: its content, or what the chat template writes of a turn that has more."""
    if turn.keys() == {"role", "content"}:
        return str(turn["content"])
    try:
        return template.turn_text(turn)
    except Exception as error:  # border: a template is a program that came with the model
        reason = one_line(str(error).partition("\n")[0], 200)
        raise GrpoError(f"{problem.label}: the model's chat template refuses a message: {reason}; change it") from error


def _readable(messages: Sequence[Message], template: ConversationTemplate) -> list[Message]:
    """The messages in roles that the template has: answers of tools may have to be the user's."""
    if template.has_tool_role:
        return list(messages)
    found: list[Message] = []
    for role, run in groupby(messages, lambda message: message["role"]):
        answers = list(run)
        found += template.tool_messages([_call(each) for each in answers]) if role == "tool" else answers
    return found


def _call(answer: Message) -> Call:
    """The call that this message answers, as far as it says."""
    return Call(str(answer["name"]), "", str(answer["content"]))
