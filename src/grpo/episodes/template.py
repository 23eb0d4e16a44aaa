"""What stands between two turns of the assistant: observations as tokens, written by the model's chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from grpo.episodes.tools import CallReader
from grpo.errors import GrpoError, one_line
from grpo.model.policy import Policy
from grpo.model.prompt import is_chat, render
from grpo.model.tool_text import call_text, example_arguments
from grpo.types import Call, Problem

Message = Mapping[str, Any]
USER: Message = {"role": "user", "content": "1"}
TURN: Message = {"role": "assistant", "content": "2"}
THOUGHT: Message = {"role": "assistant", "content": "<think>\nSo.\n</think>\n\n2"}
UNKNOWN = "unknown"
"""Name of the tool in the answer to a call that names none of them."""
FILE = "--dataset.chat-template FILE"
FIRST_MARK = 0xF0000
"""First of the characters for private use that can stand for special tokens in texts."""


class ConversationTemplate:
    """The chat template of a policy, used to continue a conversation. Only what the model reads is encoded: the tokens
    that it sampled stay as they are."""

    def __init__(self, policy: Policy):
        self.policy, self.tokenizer = policy, policy.tokenizer
        template = str(self.tokenizer.chat_template or "")
        self.has_tool_role = bool(re.search(r"""["']tool["']""", template))
        self.writes_calls = "tool_calls" in template
        ends = self.tokenizer.convert_ids_to_tokens(sorted(policy.end_tokens))
        self.ends = [str(end) for end in ends]
        self._starts: dict[str, int] = {}
        special = [str(each) for each in getattr(self.tokenizer, "added_tokens_decoder", {}).values() if each.special]
        longest_first = sorted(special, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first))) if special else None

    def observation(self, problem: Problem, messages: Sequence[Message], *, closed: bool = True) -> list[int]:
        """The tokens that the model reads after its turn, up to the start of its next one: all messages of one reply
        together. Without a chat template: their texts.

        `closed`: the turn ended with an end token. One that ended otherwise, with a stop string, is closed here.
        """
        if not is_chat(problem, self.tokenizer):
            return self.encode_plain("".join(message["content"] for message in messages))
        return self._between(messages)[1 if closed else 0 :]

    def end_token(self, problem: Problem) -> int:
        """The end token of a turn that is written, not sampled."""
        return self._turn_end if is_chat(problem, self.tokenizer) else end_token(self.policy)

    @cached_property
    def _turn_end(self) -> int:
        """The first end token that the template writes after a turn; the policy's own if it writes none."""
        try:
            _, _, after = self._render([USER, TURN]).rpartition(TURN["content"])
        except Exception:  # noqa: BLE001  border: a template is a program that came with the model
            return end_token(self.policy)
        numbers = zip(self.ends, sorted(self.policy.end_tokens), strict=True)
        found = [(after.find(end), -len(end), token) for end, token in numbers if end in after]
        return min(found)[-1] if found else end_token(self.policy)

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a text in which no special token has a meaning."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return tokens

    def tool_messages(self, calls: Sequence[Call]) -> list[Message]:
        """The answers of the calls of one turn: messages of role tool, or one of the user where the template has no
        such role."""
        if self.has_tool_role:
            known = {tool["function"]["name"] for tool in self.policy.tools}
            # Without tools of the run, they are an agent's, which has found each of them.
            names = [call.name if call.name in known or not known else UNKNOWN for call in calls]
            return [
                {"role": "tool", "name": name, "content": call.answer} for name, call in zip(names, calls, strict=True)
            ]
        answers = [f"<tool_response>\n{call.answer}\n</tool_response>" for call in calls]
        return [{"role": "user", "content": "\n".join(answers)}]

    def turn_text(self, turn: Message) -> str:
        """A turn of the assistant that has calls or other keys, as the template writes it, without its end token."""
        if turn.get("tool_calls") and not self.writes_calls:
            calls = [call_text(call.get("function", call)) for call in turn["tool_calls"]]
            return "\n".join(filter(None, (turn["content"], *calls)))
        whole = self._render([USER, turn])
        return whole[len(self.turn_prefix()) : self._last_end(whole)]

    def turn_prefix(self) -> str:
        """What the template writes before a turn of the assistant, at the end of a conversation."""
        return self._render([USER], add_generation_prompt=True)

    def check(self) -> None:
        """Refuses a template with which the tokens of an episode would differ from the whole conversation, rendered."""
        if not self.tokenizer.chat_template:
            return
        try:
            faults = [*(self._fault(turn, self._reply()) for turn in self._turns()), self._unread_call()]
        except Exception as error:  # border: a template is a program that came with the model
            reason = one_line(str(error).partition("\n")[0], 200)
            raise GrpoError(
                f"field model: the chat template of {self.policy.name} refuses a conversation of several turns: "
                f"{reason}; name another template: {FILE}"
            ) from error
        if fault := next(filter(None, faults), ""):
            raise GrpoError(f"field model: the chat template of {self.policy.name} {fault}")

    def _between(self, messages: Sequence[Message]) -> list[int]:
        """The end token of a turn and everything up to the start of the next."""
        before = self._before(messages)
        key = messages[0].get("name", "")
        if key not in self._starts:
            self._starts[key] = self._last_end(self._render(before))
        marked, marks = self._marked(messages)
        rendered = self._render([*before, *marked], add_generation_prompt=True)
        # From the end token on: some tokenizers treat the first word, or white space after a special token, in their
        # own way.
        return self._encode_marked(rendered[self._starts[key] :], marks)

    def _marked(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, str]]:
        """(the messages, with a mark for each special token that stands in a text; the token that each mark stands for)

        Such a text, of a web page say, could otherwise end its message and begin another one, such as of the system.
        """
        texts = "".join(message["content"] for message in messages)
        found = dict.fromkeys(self.special.findall(texts)) if self.special else {}
        free = (chr(code) for code in range(FIRST_MARK, FIRST_MARK + 0xFFFE) if chr(code) not in texts)
        marks = dict(zip(found, free, strict=False))
        if not marks:
            return messages, {}

        def with_marks(text: str) -> str:
            return self.special.sub(lambda match: marks[match[0]], text) if self.special else text

        marked = [{**message, "content": with_marks(message["content"])} for message in messages]
        return marked, {mark: token for token, mark in marks.items()}

    def _encode_marked(self, rendered: str, marks: Mapping[str, str]) -> list[int]:
        """Encodes each stretch between two special tokens of the template as plain text, if there are marks in it."""
        if not (marks and self.special):
            return self._encode(rendered)
        tokens, done = [], 0
        bounds = [0, *(place for match in self.special.finditer(rendered) for place in match.span()), len(rendered)]
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            stretch = rendered[start:end]
            if any(mark in stretch for mark in marks):
                plain = self.encode_plain("".join(marks.get(character, character) for character in stretch))
                tokens += self._encode(rendered[done:start]) + plain
                done = end
        return tokens + self._encode(rendered[done:])

    def _before(self, messages: Sequence[Message]) -> list[Message]:
        """A short conversation that these messages can follow. Some templates take a tool's name from its call."""
        return [USER, _calling(messages[0]["name"]) if messages[0]["role"] == "tool" else TURN]

    def _reply(self) -> list[Message]:
        if not self.policy.tools:
            return [{"role": "user", "content": "3"}]
        name = self.policy.tools[0]["function"]["name"]
        return self.tool_messages([Call(name, "{}", "3"), Call(name, "{}", "4")])

    def _turns(self) -> list[Message]:
        if not (self.policy.tools and self.has_tool_role):
            return [TURN, THOUGHT]
        name = self.policy.tools[0]["function"]["name"]
        return [_calling(name), _calling(name, THOUGHT["content"])]

    def _fault(self, turn: Message, reply: Sequence[Message]) -> str:
        """Goes through a conversation of three turns; empty: its pieces are the whole."""
        history, whole = [USER], self.turn_prefix()
        for _ in range(3):
            history.append(turn)
            closed = self._render(history)
            if not closed.startswith(whole):
                return (
                    f"begins a turn of the assistant with {_tail(whole)} and later writes it as "
                    f"{_tail(closed)}; name a template that keeps it: {self._remedy()}"
                )
            end = self._last_end(closed)
            if end < len(whole):
                ends = ", ".join(self.ends)
                return (
                    f"ends a turn with {_tail(closed[len(whole) :])}, which is not an end token of the model ({ends}); "
                    "set eos_token_id in its generation_config.json"
                )
            dropped = turn is THOUGHT and "So." not in closed[len(whole) :]
            history += reply
            whole = self._render(history, add_generation_prompt=True)
            pieces = [*self._encode(closed[:end]), *self._between(reply)]
            if dropped or self.tokenizer.decode(pieces) != self.tokenizer.decode(self._encode(whole)):
                return (
                    "changes an earlier turn of the assistant when a message follows, such as its thinking: the model "
                    f"would be trained on turns that it does not read later; name a template that keeps them: "
                    f"{self._remedy()}"
                )
        return ""

    def _unread_call(self) -> str:
        """A call as the template writes it must be one that is read."""
        if not (self.policy.tools and self.has_tool_role):
            return ""
        tool = self.policy.tools[0]
        name, prefix = tool["function"]["name"], self.turn_prefix()
        call = self._render([USER, _calling(name, arguments=example_arguments(tool))])
        text = call[len(prefix) : self._last_end(call)]
        read, _ = CallReader(self.policy.tools, self.tokenizer, prefix).read(text)
        if [(each.name, each.error) for each in read] == [(name, "")]:
            return ""
        return (
            f"writes a call as {text[:200]!r}, which is not read as one; set response_template in the model's "
            f"tokenizer_config.json (transformers: response parsing), or name another template: {FILE}"
        )

    def _remedy(self) -> str:
        template = str(self.tokenizer.chat_template)
        is_qwen3 = all(mark in template for mark in ("<|im_start|>", "</think>", "<tool_response>"))
        ships = is_qwen3 and "<function=" not in template
        return "--dataset.chat-template qwen3, which ships, or a file" if ships else FILE

    def _last_end(self, rendered: str) -> int:
        """Where the last end token begins; -1: there is none."""
        return max(rendered.rfind(end) for end in self.ends)

    def _render(self, messages: Sequence[Message], **form: bool) -> str:
        policy = self.policy
        return render(messages, self.tokenizer, policy.chat_template_kwargs, policy.tools, **form)

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens


def end_token(policy: Policy) -> int:
    """The end token of a text that is written, not sampled: the tokenizer's, if sampling ends there."""
    end: int = policy.tokenizer.eos_token_id
    return end if end in policy.end_tokens else min(policy.end_tokens)


def _calling(name: str, content: str = "", arguments: Mapping[str, Any] | None = None) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _tail(text: str) -> str:
    return repr(text[-40:])
