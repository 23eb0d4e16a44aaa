"""Stop strings: texts that end a completion, or a turn of it.

A turn ends with the first token at which its text contains a stop string, which it keeps, as with transformers'
`StopStringCriteria`; but text before the turn does not count. Sampling noise is keyed by position, so a turn that
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

    def cut(self, turns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The length of each turn up to and with its first stop string, and whether it has one."""
        length_N, found_N = np.array([len(turn) for turn in turns]), self._contained(turns)
        [index_F] = found_N.nonzero()
        # Bisection: the text up to `high` contains a stop string, the text before `low` does not.
        low_F, high_F = np.ones_like(index_F), length_N[index_F]
        while (low_F < high_F).any():
            middle_F = (low_F + high_F) // 2
            has_F = self._contained(
                [turns[i][:end] for i, end in zip(index_F.tolist(), middle_F.tolist(), strict=True)]
            )
            low_F, high_F = np.where(has_F, low_F, middle_F + 1), np.where(has_F, middle_F, high_F)
        cut_N = length_N.copy()
        cut_N[index_F] = high_F
        return cut_N, found_N

    def ended(
        self,
        tokens_NL: torch.Tensor,
        rows_M: torch.Tensor,
        start_M: torch.Tensor,
        end_M: torch.Tensor,
        new: int = 1,
    ) -> torch.Tensor:
        """bool [M]: which of the rows complete a stop string with their last `new` tokens. A row's turn has the places
        from `start_M` to before `end_M`.

        Only the end of each turn is read and decoded at first. A stop string that this misses is found by `cut`.
        """
        width, device = self.longest + new - 1, tokens_NL.device
        rows_M, end_M = rows_M.to(device), end_M.to(device).long()
        place_MW = end_M[:, None] - width + torch.arange(width, device=device)
        tail_MW = tokens_NL[rows_M[:, None], place_MW.clamp(min=0)].cpu().numpy()
        starts, ends = start_M.tolist(), end_M.tolist()
        tails = zip(tail_MW, starts, ends, strict=True)
        ended_M = self._contained([row[max(0, width - (end - start)) :] for row, start, end in tails])
        [index_F] = ended_M.nonzero()
        whole = (tokens_NL[rows_M[i], starts[i] : ends[i]].cpu().numpy() for i in index_F)
        ended_M[index_F] = self._contained([*whole])
        return torch.from_numpy(ended_M).to(device)

    def _contained(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        texts = self.policy.texts(rows) if rows else []
        return np.array([any(string in text for string in self.strings) for text in texts], dtype=bool)
