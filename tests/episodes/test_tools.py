"""Tools: their schemas, how prompts describe them, and the calls that are read in a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from grpo.config import Dataset
from grpo.episodes.tools import CallReader, load_tools, schema_of
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.prompt import prompt_tokens
from grpo.tasks.prompt_limit import PromptLimit
from grpo.types import Problem, chat
from helpers.chats import chat_policy, chat_tokenizer

PROBLEM = Problem("p", "6*7?", "42", messages=chat("6*7?"))


def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        Their product.
    """
    return a * b


async def search(query: str, limit: int | None = 3, order: Literal["new", "old"] = "new") -> list[str]:
    """Searches.

    Args:
        query: What to search for.
        limit: Most results.
        order: Which results come first.
    """
    return [query][:limit]


SCHEMAS = [schema_of(multiply, "tool multiply"), schema_of(search, "tool search")]
FILE = '''
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: One number.
        b: Another.
    """
    return a + b

def untyped(a):
    """Adds.

    Args:
        a: One number.
    """

def bare(a: int): ...

def google(a: int):
    """Doubles.

    Args:
        a (int): A number.
    """

def misspelt(a: "Tensr"):
    """Doubles."""

class Game: ...
'''


def test_tools_of_a_file_and_of_python(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    tools = load_tools(
        f"{tmp_path}/mine.py:add, python:search, python:multiply", {"search": search, "multiply": multiply}
    )
    assert [tool.name for tool in tools] == ["add", "search", "multiply"]
    assert [str(tool.place) for tool in tools] == [f"{tmp_path}/mine.py:add", "None", "None"]
    assert tools[1].function is search
    assert [tool.schema for tool in tools[1:]] == [get_json_schema(search), get_json_schema(multiply)]
    assert load_tools("") == ()


ADVICE = 'write a docstring: what it does, then "Args:" and for each argument a line "x: what it is"'
UNDESCRIBED = "the docstring has no description for the argument"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("untyped", "tool {}: Argument a is missing a type hint in function untyped; give each argument a type, such"),
        ("bare", f"tool {{}}: Cannot generate JSON schema for bare because it has no docstring!; {ADVICE}"),
        ("google", f"tool {{}}: Cannot generate JSON schema for google because {UNDESCRIBED} 'a'; {ADVICE}"),
        ("misspelt", "tool {}: has no usable types: NameError: name 'Tensr' is not defined"),
        ("Game", "tool {}: is a class; name a function, or use --env for an environment"),
        ("other", "tool {}: {file} has no function other; it has add, untyped, bare, google, misspelt"),
        ("2x", "field episodes.tools: '{}' is not a valid tool; write file.py:NAME or module:NAME"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_one_line(tmp_path: Path, entry: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    with pytest.raises(GrpoError) as refused:
        load_tools(f"{file}:{entry}")
    assert str(refused.value).startswith(message.format(f"{file}:{entry}", file=file))


def test_a_list_of_tools_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    def image(picture: torch.Tensor) -> None:
        """Shows.

        Args:
            picture: It.
        """

    for text, message in (
        ("absent.py:f", "tool absent.py:f: file absent.py does not exist"),
        (
            "python:gone",
            "field episodes.tools: gone came from Python and cannot be stored in a record; name others with",
        ),
        ("python:multiply, python:again", "field episodes.tools: two functions are called multiply; rename one"),
        ("python:image", "tool image: has no usable types: SchemaError: 'audio' is not valid under any of the given"),
    ):
        with pytest.raises(GrpoError) as refused:
            load_tools(text, {"multiply": multiply, "again": multiply, "image": image})
        assert str(refused.value).startswith(message)


def call(name: str = "multiply", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


READER = CallReader(SCHEMAS)


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        ("42", [], "42"),
        (f"I try. {call(a=6, b=7)}", [("multiply", {"a": 6, "b": 7})], "I try."),
        (call(a=6, b=7) + call("search", query="x"), [("multiply", {"a": 6, "b": 7}), ("search", {"query": "x"})], ""),
        (call(a="6", b=7.0), [("multiply", {"a": 6, "b": 7.0})], ""),
        (call("search", query="6", limit=None), [("search", {"query": "6", "limit": None})], ""),
        (call(a=6, b=7).removesuffix("</tool_call>"), [("multiply", {"a": 6, "b": 7})], ""),
        ('{"name": "multiply", "parameters": {"a": 6, "b": 7}}', [("multiply", {"a": 6, "b": 7})], ""),
        ('{"name": "Ada", "age": 36}', [], '{"name": "Ada", "age": 36}'),
        (f"<think>{call(a=1, b=1)}</think>{call(a=6, b=7)}", [("multiply", {"a": 6, "b": 7})], ""),
        (f"<think>{call(a=1, b=1)}", [], f"<think>{call(a=1, b=1)}"),
    ],
)
def test_calls_are_read(text: str, calls: list[Any], rest: str) -> None:
    read, left = READER.read(text)
    assert [(each.name, dict(each.arguments), each.error) for each in read] == [(*each, "") for each in calls]
    assert [json.loads(each.written) for each in read] == [arguments for _, arguments in calls]
    assert left == rest


@pytest.mark.parametrize(
    ("inner", "name", "error"),
    [
        (
            '{"name": "multiply", "arg',
            "",
            "error: the call is not valid JSON: Unterminated string starting at: line 1 col",
        ),
        ("[1]", "", 'error: a call needs a "name" and "arguments"'),
        ('{"name": 3}', "", 'error: a call needs a "name" and "arguments"'),
        ('{"name": "divide"}', "divide", "error: unknown function divide; known: multiply, search"),
        ('{"name": "multiply"}', "multiply", "error: multiply: 'a' is a required property"),
        ('{"name": "multiply", "arguments": [6, 7]}', "multiply", "error: multiply: [6, 7] is not of type 'object'"),
        (
            '{"name": "multiply", "arguments": {"a": 6, "b": "x"}}',
            "multiply",
            "error: multiply: argument b: 'x' is not of type 'integer'",
        ),
        (
            '{"name": "multiply", "arguments": {"a": 6, "b": 7, "c": 8}}',
            "multiply",
            "error: multiply: Additional properties are not allowed ('c' was unexpected)",
        ),
        (
            '{"name": "search", "arguments": {"query": "x", "order": "up"}}',
            "search",
            "error: search: argument order: 'up' is not one of ['new', 'old']",
        ),
        ("[" * 100_000, "", "error: the call is not valid JSON: maximum recursion depth exceeded"),
        (
            f'{{"name": "multiply", "arguments": {{"a": {"9" * 5000}}}}}',
            "",
            "error: the call is not valid JSON: Exceeds",
        ),
        ('{"name": "multiply", "arguments": {"a": "\\ud800"}}', "", "error: the call is not valid JSON: 'utf-8' codec"),
        (f'{{"name": "{"x" * 1000}\\n"}}', f"{'x' * 1000}\n", f"error: unknown function {'x' * 250}"),
    ],
)
def test_a_call_that_cannot_be_made_has_one_line_of_error(inner: str, name: str, error: str) -> None:
    [[read], rest] = READER.read(f"<tool_call>{inner}</tool_call>")
    assert (read.name, dict(read.arguments), rest) == (name, {}, "")
    assert read.error.startswith(error)
    assert len(read.error.splitlines()) == 1
    assert len(read.error) <= 301


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    '{"name": "multiply", "arguments": {"a": 1, "b": ',
    "2",
    "}",
]
PIECES += [
    '{"name": ',
    '"search"',
    ', "arguments": ',
    '{"query": "x"}',
    "null",
    "[",
    "]",
    "1e999",
    "NaN",
    '"\\ud800"',
    " so ",
    '"',
]


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12))
def test_any_text_is_read(pieces: list[str]) -> None:
    """A call without an error has arguments that JSON can hold and that fit its schema."""
    calls, rest = READER.read("".join(pieces))
    assert isinstance(rest, str)
    for each in calls:
        assert bool(each.error) != bool(each.arguments)
        assert each.error or each.name in ("multiply", "search")
        each.written.encode()


def test_calls_are_those_that_trl_reads() -> None:
    """Through transformers' parser, which also reads calls here where a tokenizer has a response template."""
    utils = pytest.importorskip("trl.chat_template_utils")
    tokenizer = chat_tokenizer("qwen2_5")
    theirs = utils.add_response_schema(chat_tokenizer("qwen2_5"))
    prefix = "<|im_start|>assistant\n"
    own, other = CallReader(SCHEMAS, tokenizer), CallReader(SCHEMAS, theirs, prefix)
    for text in (
        "42",
        f"So {call(a=6, b='7')}",
        call(a=1, b=2) + call(a=3, b=4),
        f"<think>\n{call(a=1, b=1)}</think>\n42",
    ):
        ids, before = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text, prefix))
        parsed = utils.parse_response(theirs, ids, prefix=before, tools=SCHEMAS)
        expected = [each["function"] for each in parsed.get("tool_calls", ())]
        for reader in (own, other):
            calls, rest = reader.read(text)
            assert [{"name": each.name, "arguments": each.arguments} for each in calls] == expected
            assert rest == parsed["content"]
    [[broken], _] = other.read("<tool_call>{")
    assert broken.error.startswith("error: the call cannot be read: Expecting property name")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "ours", "llama3_2"])
def test_a_template_that_knows_tools_writes_them_as_transformers_does(name: str) -> None:
    tokenizer = chat_tokenizer(name)
    kwargs = {"date_string": "1 Jan 2026"} if name == "llama3_2" else {}
    theirs = tokenizer.apply_chat_template(
        [*map(dict, PROBLEM.messages)],
        tools=[multiply, search],
        add_generation_prompt=True,
        return_dict=False,
        **kwargs,
    )
    assert prompt_tokens(PROBLEM, tokenizer, kwargs, SCHEMAS) == theirs
    assert b"Multiplies two integers." in tokenizer.decode(theirs).encode()


def test_a_template_that_knows_no_tools_gets_them_in_the_system_message() -> None:
    tokenizer = chat_tokenizer("smollm2")
    described = [
        json.dumps({key: tool["function"][key] for key in ("name", "description", "parameters")}) for tool in SCHEMAS
    ]
    text = f"""You can call these functions:
{described[0]}
{described[1]}
To call one, write its name and arguments as JSON, like this:
<tool_call>{{"name": "multiply", "arguments": {{"a": 2, "b": 2}}}}</tool_call>
Then stop. The result is given to you in <tool_response></tool_response>."""
    asked = "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n"
    assert (
        tokenizer.decode(prompt_tokens(PROBLEM, tokenizer, {}, SCHEMAS))
        == f"<|im_start|>system\n{text}<|im_end|>\n{asked}"
    )
    brief = Problem("p", "6*7?", "42", messages=chat("6*7?", "Be brief."))
    tokens = prompt_tokens(brief, tokenizer, {}, SCHEMAS)
    assert tokenizer.decode(tokens) == f"<|im_start|>system\nBe brief.\n\n{text}<|im_end|>\n{asked}"
    [[example], _] = READER.read(text)
    assert (example.name, example.arguments, example.error) == ("multiply", {"a": 2, "b": 2}, "")


def test_the_prompt_limit_counts_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.model.load.load_tokenizer", lambda name: chat_tokenizer("qwen2_5"))
    policy = chat_policy("qwen2_5")
    plain, described = (len(prompt_tokens(PROBLEM, policy.tokenizer, {}, tools)) for tools in ((), SCHEMAS))
    assert plain < described
    limit = Dataset(max_prompt_tokens=described - 1)
    assert PromptLimit(limit, "m").within([PROBLEM]) == [PROBLEM]
    with pytest.raises(
        GrpoError, match=f"have more than {described - 1} tokens, the shortest has {described}; raise it"
    ):
        PromptLimit(limit, "m", SCHEMAS).within([PROBLEM])


def test_tools_need_a_chat_template() -> None:
    policy = load_policy("nano")
    policy.tools = SCHEMAS
    with pytest.raises(
        GrpoError, match=r"field episodes.tools: the model has no chat template to describe tools with; "
    ):
        policy.prompt_tokens(PROBLEM)
    with pytest.raises(
        GrpoError, match=r"problem p: is plain text, which cannot describe tools \(episodes.tools\); its"
    ):
        prompt_tokens(Problem("p", "6*7=", "42"), chat_tokenizer("qwen2_5"), {}, SCHEMAS)
    with pytest.raises(GrpoError, match=r"field dataset.chat_template_kwargs: tools is a setting; use episodes.tools"):
        prompt_tokens(PROBLEM, chat_tokenizer("qwen2_5"), {"tools": []})
