"""Stop strings: texts that end a completion.

A completion ends with the first token at which its text contains a stop string, which it keeps, as with transformers'
`StopStringCriteria`; but text of the prompt does not count. Sampling noise is keyed by position, so a completion that
is cut after sampling equals one that left the batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from grpo.model.policy import Policy


class StopStrings:
    def __init__(self, policy: Policy, strings: Sequence[str]):
        self.policy, self.strings = policy, strings
        self.longest = 1 + max(len(string.encode()) for string in strings)
        """Most tokens that a stop string spans, and one before it: some tokenizers drop the first token's space."""

    def cut(self, tokens_NL: np.ndarray, length_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The length of each completion up to and with its first stop string, and whether it has one."""
        found_N = self._contained([row[:length] for row, length in zip(tokens_NL, length_N, strict=True)])
        [index_F] = found_N.nonzero()
        # Bisection: the text up to `high` contains a stop string, the text before `low` does not.
        low_F, high_F = np.ones_like(index_F), length_N[index_F]
        while (low_F < high_F).any():
            middle_F = (low_F + high_F) // 2
            has_F = self._contained([tokens_NL[i, :end] for i, end in zip(index_F, middle_F, strict=True)])
            low_F, high_F = np.where(has_F, low_F, middle_F + 1), np.where(has_F, middle_F, high_F)
        cut_N = length_N.copy()
        cut_N[index_F] = high_F
        return cut_N, found_N

    def ended(self, tokens_NL: torch.Tensor, new: int = 1, length_N: torch.Tensor | None = None) -> torch.Tensor:
        """bool [N]: rows whose last `new` tokens complete a stop string. Without `length_N`, all rows are full.

        Only the end of each row is decoded at first. A stop string that this misses is found by `cut`.
        """
        rows = list(tokens_NL.cpu().numpy())
        if length_N is not None:
            rows = [row[:length] for row, length in zip(rows, length_N.tolist(), strict=True)]
        ended_N = self._contained([row[-(self.longest + new - 1) :] for row in rows])
        [index_F] = ended_N.nonzero()
        ended_N[index_F] = self._contained([rows[i] for i in index_F])
        return torch.from_numpy(ended_N).to(tokens_NL.device)

    def _contained(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        texts = self.policy.texts(rows) if rows else []
        return np.array([any(string in text for string in self.strings) for text in texts], dtype=bool)
