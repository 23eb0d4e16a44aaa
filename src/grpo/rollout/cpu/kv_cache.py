"""Decoding on a CPU with each prompt's keys and values there once for all of its group, and read once a token.

Axis letters beyond types.py: Q tokens of the longest prompt, H key heads, R query heads that share a key head, D head
width, S tokens sampled so far, J places for completions in a group.
"""

from __future__ import annotations

import torch

from grpo.model.attention import PromptCache


class SharedPromptCache:
    """What `attention.DecodeCache` is, in plain products: for float32, where nothing is lost to rounding.

    Rows stand in a grid of groups and places, [P, J]; as rows leave, it shrinks to what the fullest group needs.
    """

    def __init__(self, prompts: PromptCache, lengths_P: torch.Tensor, prompt_of_N: torch.Tensor, max_new_tokens: int):
        """The rows of a group one after another, all groups of one size."""
        self.prompts, self.lengths_P = prompts.layers, lengths_P
        P, J = len(lengths_P), len(prompt_of_N) // len(lengths_P)
        self.shape = P, J
        self.own = {}
        for layer, (k_PHQD, _) in self.prompts.items():
            _, H, _, D = k_PHQD.shape
            k_PHJSD = k_PHQD.new_empty(P, H, J, max_new_tokens, D)
            self.own[layer] = (k_PHJSD, torch.empty_like(k_PHJSD))
        self.used = 0
        """Own tokens so far."""
        self.row_at_PJ: torch.Tensor | None = None
        """Which row stands at each place, any where none does; None: they stand there one after another."""
        self.place_of_N: torch.Tensor | None = None
        self.masks: dict[int | None, torch.Tensor | None] = {}

    def grow(self) -> None:
        """Makes room for the next token; call once per decoding step, before the model runs."""
        self.used += 1
        self.masks = {}

    def keep(self, rows: torch.Tensor) -> None:
        """Drops all rows but these: finished completions leave the batch, and groups that have none left."""
        (_, J), device = self.shape, rows.device
        place_N = rows if self.place_of_N is None else self.place_of_N[rows]
        groups, group_N, counts = torch.unique_consecutive(place_N // J, return_inverse=True, return_counts=True)
        rank_N = torch.arange(len(rows), device=device) - (counts.cumsum(0) - counts)[group_N]
        narrow = int(counts.max())
        place_of_N = group_N * narrow + rank_N
        old_place_PJ = torch.zeros(len(groups) * narrow, dtype=torch.int64, device=device)
        old_place_PJ[place_of_N] = place_N
        group_PJ, place_in_group_PJ = old_place_PJ // J, old_place_PJ % J
        shape = len(groups), narrow

        def moved(own_PHJSD: torch.Tensor) -> torch.Tensor:
            picked = own_PHJSD[group_PJ, :, place_in_group_PJ]
            return picked.view(*shape, *picked.shape[1:]).transpose(1, 2).contiguous()

        self.own = {layer: (moved(k), moved(v)) for layer, (k, v) in self.own.items()}
        if len(groups) < self.shape[0]:
            self.prompts = {layer: (k[groups], v[groups]) for layer, (k, v) in self.prompts.items()}
            self.lengths_P = self.lengths_P[groups]
        self.shape, self.row_at_PJ, self.place_of_N = shape, None, None
        if len(rows) < shape[0] * shape[1]:
            self.place_of_N = place_of_N
            self.row_at_PJ = torch.zeros_like(old_place_PJ)
            self.row_at_PJ[place_of_N] = torch.arange(len(rows), device=device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """query [N, H * R, 1, D], key and value [N, H, 1, D]; the mixed values [N, 1, H * R, D]."""
        (P, J), (k_PHJSD, v_PHJSD) = self.shape, self.own[layer]
        H, D = key.shape[1], key.shape[3]
        q_PHJRD = self._grid(query).view(P, J, H, -1, D).transpose(1, 2)
        k_PHJSD[:, :, :, self.used - 1] = self._grid(key).view(P, J, H, D).transpose(1, 2)
        v_PHJSD[:, :, :, self.used - 1] = self._grid(value).view(P, J, H, D).transpose(1, 2)
        mixed_PHJRD = self._mixed(layer, q_PHJRD * (D**-0.5 if scaling is None else scaling), window)
        out = mixed_PHJRD.transpose(1, 2).reshape(P * J, 1, -1, D)
        return out if self.place_of_N is None else out[self.place_of_N]

    def _mixed(self, layer: int, q_PHJRD: torch.Tensor, window: int | None) -> torch.Tensor:
        P, H, J, R, D = q_PHJRD.shape
        own_k, own_v = (x_PHJSD.view(P * H * J, -1, D)[:, : self.used] for x_PHJSD in self.own[layer])
        prompt_k, prompt_v = (x_PHQD.view(P * H, -1, D) for x_PHQD in self.prompts[layer])
        Q = prompt_k.shape[1]
        # The queries of a group that share a key head are one longer query: a prompt's keys are read once for all.
        q = q_PHJRD.contiguous().view(P * H, J * R, D)
        prompt_scores = torch.bmm(q, prompt_k.transpose(1, 2))
        own_scores = torch.bmm(q.view(P * H * J, R, D), own_k.transpose(1, 2))
        scores = torch.cat([prompt_scores.view(P, H, J * R, -1), own_scores.view(P, H, J * R, -1)], dim=-1)
        mask_P11S = self._mask(window, Q)
        if mask_P11S is not None:
            scores = scores.masked_fill(mask_P11S, float("-inf"))
        weight = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(weight.view(P * H, J * R, -1)[:, :, :Q], prompt_v)
        mixed = torch.baddbmm(mixed.view(P * H * J, R, D), weight.view(P * H * J, R, -1)[:, :, Q:], own_v)
        return mixed.view(P, H, J, R, D)

    def _grid(self, x_NH1D: torch.Tensor) -> torch.Tensor:
        return x_NH1D if self.row_at_PJ is None else x_NH1D[self.row_at_PJ]

    def _mask(self, window: int | None, Q: int) -> torch.Tensor | None:
        """True where nothing is to be seen: before a prompt's beginning or the window's; None where all is seen."""
        if window not in self.masks:
            # Prompts end in the same column, own tokens follow: a column is as far from the newest one in all rows.
            column_S = torch.arange(Q + self.used, device=self.lengths_P.device)
            first_P1 = (Q - self.lengths_P)[:, None]
            if window is not None:
                first_P1 = first_P1.clamp(min=Q + self.used - window)
            hidden = column_S < first_P1
            self.masks[window] = hidden[:, None, None] if bool(hidden.any()) else None
        return self.masks[window]
