"""An engine that replays given texts: for tests, docs and the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo.rollout.protocol import Sampling
from grpo.types import Completion, Group, Problem


class ScriptedEngine:
    """Replays texts by problem id, cycling through them to fill the group. Every text ends with the end token.

    >>> class Characters:
    ...     eos_token_id = 0
    ...     def __call__(self, text, **options): return {"input_ids": [ord(c) for c in text]}
    >>> engine = ScriptedEngine(Characters(), {"p": ["42", "41"]})
    >>> [group] = engine.sample([Problem("p", "6*7=", "42")], group_size=3)
    >>> [completion.text for completion in group.completions], group.completions[0].tokens.tolist()
    (['42', '41', '42'], [52, 50, 0])
    """

    def __init__(self, tokenizer: Any, texts: Mapping[str, Sequence[str]]):
        self.tokenizer, self.texts = tokenizer, texts

    def sample(self, problems: Sequence[Problem], group_size: int, sampling: Sampling | None = None) -> list[Group]:
        return [self._group(problem, group_size) for problem in problems]

    def _group(self, problem: Problem, group_size: int) -> Group:
        texts = self.texts[problem.id]
        completions = tuple(self._completion(texts[i % len(texts)]) for i in range(group_size))
        return Group(problem, self._tokens(problem.prompt), completions, policy_version=0)

    def _completion(self, text: str) -> Completion:
        tokens = np.append(self._tokens(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        return Completion(text, tokens, np.zeros(len(tokens), dtype=np.float32), "stop")

    def _tokens(self, text: str, **options: bool) -> np.ndarray:
        return np.array(self.tokenizer(text, **options)["input_ids"], dtype=np.int64)
