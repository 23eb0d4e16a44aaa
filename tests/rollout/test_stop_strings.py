"""Stop strings against transformers' own, on every path of the engine."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.generation.stopping_criteria import StopStringCriteria

from grpo.model.attention import NAME
from grpo.model.policy import Policy
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.rollout.stop_strings import StopStrings
from grpo.types import Completion, Problem
from helpers.policies import SHAPE, random_policy

TEXT = "the answer is <answer>42</answer> and “naïve” naïveté\n\nnext answers: 5 → 6, 7 → 8\n"


def byte_level_policy() -> Policy:
    """A tokenizer of bytes and merged bytes: some tokens are parts of a character, others span a stop string's end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return Policy(model=None, tokenizer=wrapped, name="bytes", end_tokens=frozenset())


@pytest.mark.parametrize("strings", [("</answer>",), ("ï",), ("\n",), ("swer", "→"), ("e", "a"), ("nowhere",)])
def test_the_first_token_that_completes_a_stop_string_is_that_of_transformers(strings: tuple[str, ...]) -> None:
    policy = byte_level_policy()
    text = policy.tokenizer(TEXT)["input_ids"]
    generator = np.random.default_rng(0)
    noise = generator.integers(len(policy.tokenizer), size=(30, 40))
    start = generator.integers(len(text) - 20, size=30)
    # Random tokens, then 20 tokens of the text.
    rows_NL = np.array([[*row[:20], *text[s : s + 20]] for row, s in zip(noise, start, strict=True)])
    theirs = StopStringCriteria(policy.tokenizer, list(strings))
    done_LN = torch.stack([theirs(torch.from_numpy(rows_NL[:, : t + 1]), None) for t in range(40)]).numpy()
    expected_N = np.where(done_LN.any(axis=0), done_LN.argmax(axis=0) + 1, 40)
    ours = StopStrings(policy, strings)
    length_N, found_N = ours.cut(list(rows_NL))
    assert length_N.tolist() == expected_N.tolist()
    assert found_N.tolist() == done_LN.any(axis=0).tolist()
    if strings == ("nowhere",):
        assert not found_N.any()
    else:
        assert found_N.sum() > 0
    for length in (5, 21, 40):  # row by row while they are sampled
        first_N = torch.from_numpy(expected_N == length) & torch.from_numpy(found_N)
        ended_N = ours.ended(
            torch.from_numpy(rows_NL), torch.arange(30), torch.zeros(30, dtype=torch.int64), torch.full((30,), length)
        )
        assert (ended_N | ~first_N).all(), "none is missed"


def test_only_the_new_tokens_of_a_turn_count() -> None:
    """Against a direct search: any rows in any order, turns that begin later, empty turns, several new tokens."""
    policy, strings = byte_level_policy(), ("swer", "ï")
    stop, text = StopStrings(policy, strings), policy.tokenizer(TEXT)["input_ids"]
    generator = np.random.default_rng(1)
    tokens_NL = torch.from_numpy(generator.choice(text, size=(50, 12)))
    found = []
    for new in (1, 3):
        rows = torch.from_numpy(generator.permutation(50)[:30])
        start = torch.from_numpy(generator.integers(9, size=30))
        end = start + torch.from_numpy(generator.integers(4, size=30))
        ended = stop.ended(tokens_NL, rows, start, end.int(), new)
        for row, first, last, has in zip(rows.tolist(), start.tolist(), end.tolist(), ended.tolist(), strict=True):
            turn = policy.tokenizer.decode(tokens_NL[row, first:last])
            tail = policy.tokenizer.decode(tokens_NL[row, max(first, last - stop.longest - new + 1) : last])
            assert has == any(string in turn and string in tail for string in strings)
            found.append(has)
    assert 5 < sum(found) < 55


def test_greedy_completions_equal_generate_with_stop_strings() -> None:
    policy = byte_level_policy()
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(**{**SHAPE, "vocab_size": len(policy.tokenizer)}, initializer_range=1.0)
    policy.model = transformers.AutoModelForCausalLM.from_config(deepcopy(settings), attn_implementation=NAME).eval()
    stock = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    stock.load_state_dict(policy.model.state_dict())
    problems = [Problem(f"p{i}", prompt, "") for i, prompt in enumerate(("the answer", "next", "naïve is", "6, 7"))]
    greedy = Sampling(seed=0, temperature=0.0, max_new_tokens=24)
    engine = Engine(policy)
    texts = [group.completions[0].text for group in engine.sample(problems, 1, greedy)]
    strings = [re.findall(r"[!-~]{2,3}", text)[-1] for text in texts[:2]]  # bytes that are no characters are left out
    lengths = set()
    for group in engine.sample(problems, 1, replace(greedy, stop=tuple(strings))):
        prompt = torch.tensor(group.prompt_tokens)[None]
        expected = stock.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            stop_strings=strings,
            tokenizer=policy.tokenizer,
            eos_token_id=None,
            pad_token_id=0,
        )[0, prompt.shape[1] :]
        [completion] = group.completions
        assert completion.tokens.tolist() == expected.tolist()
        assert completion.finish == ("stop" if len(completion) < 24 else "length")
        lengths.add(len(completion))
    assert len(lengths) > 1
    assert min(lengths) < 24


def sampled(policy: Policy, stop: tuple[str, ...], engine: Engine | None = None, length: int = 16) -> list[Completion]:
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=length, stop=stop)
    problems = [Problem("a", "hello", ""), Problem("b", "a longer prompt", "")]
    groups = (engine or Engine(policy)).sample(problems, 8, sampling)
    return [completion for group in groups for completion in group.completions]


def check_cut(free: list[Completion], stopped: list[Completion], strings: tuple[str, ...]) -> None:
    """`stopped` is `free` cut after the first stop string. A token is a character here."""
    cuts = 0
    for whole, part in zip(free, stopped, strict=True):
        ends = [whole.text.find(string) + len(string) for string in strings if string in whole.text]
        cuts += bool(ends)
        length = min(ends) if ends else len(whole)
        assert part.tokens.tolist() == whole.tokens[:length].tolist()
        np.testing.assert_allclose(part.logprobs, whole.logprobs[:length], atol=1e-5)
        assert part.text == whole.text[:length]
        assert part.finish == ("stop" if ends else whole.finish)
    assert cuts >= 3


@pytest.mark.parametrize("max_concurrent", [0, 3])
def test_a_stopped_completion_is_the_start_of_the_free_one(max_concurrent: int) -> None:
    policy = random_policy("llama")
    free = sampled(policy, ())
    strings = (free[0].text[3:5], free[9].text[2])
    check_cut(free, sampled(policy, strings, Engine(policy, max_concurrent)), strings)


def test_stopped_rows_leave_the_batch() -> None:
    policy = random_policy("llama")
    letter = sampled(policy, ())[0].text[2]
    fed: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: fed.append(i[0].numel()))
    sampled(policy, ())
    free, fed[:] = sum(fed), []
    stopped = sampled(policy, (letter,))
    hook.remove()
    assert sum(map(len, stopped)) < sum(fed) < free


def test_models_sampled_with_generate_stop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy("llama", attention="eager")
    policy.padded = True
    free = sampled(policy, ())
    strings = (free[0].text[3:5], free[9].text[2])
    check_cut(free, sampled(policy, strings), strings)
    steps: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: steps.append(1))
    sampled(policy, tuple(chr(65 + token) for token in range(48)))  # every token is a stop string
    hook.remove()
    assert len(steps) == 1, "the loop ends when every row has stopped"
