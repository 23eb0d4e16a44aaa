"""KV caches of decoding: where each prompt's keys and values are shared by its group.

`PromptCache` holds each prompt's keys and values once. `SharedPromptCache` reads them once per token for the whole
group; `DecodeCache` copies them to every row, for 16-bit precisions. A GPU has its own
cache (`rollout/cuda/kv_cache.py`).

Axis letters in addition to types.py: Q tokens of the longest prompt, H key heads, R query heads that share a key head,
D head width, S keys (prompt and own) or own tokens sampled so far, J places for completions in a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class PromptCache:
    """Keys and values of each prompt, computed once per group: per layer [P, H, Q, D], aligned at the end."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        Q = k_PHQD.shape[2]
        # With aligned ends, the first sampled token of every row has the same column.
        shift_P1 = (Q - lengths_P)[:, None]
        column_PQ = (torch.arange(Q, device=k_PHQD.device) - shift_P1) % Q
        index = column_PQ[:, None, :, None].expand_as(k_PHQD)
        self.layers[layer] = (k_PHQD.gather(2, index), v_PHQD.gather(2, index))


class DecodeCache:
    """Keys and values of every row: a copy of its prompt's in columns [0, Q), then one column per sampled token."""

    def __init__(self, prompts: PromptCache, lengths_P: torch.Tensor, prompt_of_N: torch.Tensor, max_new_tokens: int):
        self.used = next(iter(prompts.layers.values()))[0].shape[2]
        self.layers = {}
        for layer, (k_PHQD, v_PHQD) in prompts.layers.items():
            _, H, Q, D = k_PHQD.shape
            k_NHSD = k_PHQD.new_empty(len(prompt_of_N), H, Q + max_new_tokens, D)
            v_NHSD = torch.empty_like(k_NHSD)
            k_NHSD[:, :, :Q] = k_PHQD[prompt_of_N]
            v_NHSD[:, :, :Q] = v_PHQD[prompt_of_N]
            self.layers[layer] = (k_NHSD, v_NHSD)
        self.first_N = (self.used - lengths_P)[prompt_of_N]
        """First column of each row that holds a token; the columns before it are padding."""
        self.padded = bool((self.first_N > 0).any())
        self.masks: dict[int | None, torch.Tensor | None] = {}

    def grow(self) -> None:
        """Adds a column for the next token. Call once per decoding step, before the model runs."""
        self.used += 1
        self.masks = {}

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only these rows: finished completions leave the batch."""
        self.layers = {layer: (k[rows], v[rows]) for layer, (k, v) in self.layers.items()}
        self.first_N = self.first_N[rows]
        self.padded = bool((self.first_N > 0).any())

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        k_NHSD, v_NHSD = self.layers[layer]
        k_NHSD[:, :, self.used - 1] = key[:, :, 0]
        v_NHSD[:, :, self.used - 1] = value[:, :, 0]
        N, heads, _, width = query.shape
        # Query heads that share a key head are laid out as one longer query, so that no key is copied.
        out = F.scaled_dot_product_attention(
            query.reshape(N, k_NHSD.shape[1], -1, width),
            k_NHSD[:, :, : self.used],
            v_NHSD[:, :, : self.used],
            attn_mask=self._mask(window),
            scale=scaling,
        )
        return out.reshape(N, 1, heads, width)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        if window is not None and self.used <= window:
            window = None
        if window is None and not self.padded:
            return None
        if window not in self.masks:
            first_N = self.first_N if window is None else self.first_N.clamp(min=self.used - window)
            column_S = torch.arange(self.used, device=first_N.device)
            self.masks[window] = (column_S >= first_N[:, None])[:, None, None]
        return self.masks[window]


class SharedPromptCache:
    """Keys and values of the rows, with each prompt's once for its group: for float32 and float64.

    Rows stand in a grid of groups and places, [P, J]. As rows leave, it shrinks to the size of the fullest group.
    """

    def __init__(self, prompts: PromptCache, lengths_P: torch.Tensor, prompt_of_N: torch.Tensor, max_new_tokens: int):
        """`prompt_of_N`: the rows of a group are adjacent, all groups have the same size."""
        self.prompts, self.lengths_P = prompts.layers, lengths_P
        P, J = len(lengths_P), len(prompt_of_N) // len(lengths_P)
        self.shape = P, J
        self.own = {}
        for layer, (k_PHQD, _) in self.prompts.items():
            _, H, _, D = k_PHQD.shape
            k_PHJSD = k_PHQD.new_empty(P, H, J, max_new_tokens, D)
            self.own[layer] = (k_PHJSD, torch.empty_like(k_PHJSD))
        self.used = 0
        """Own tokens of every row."""
        self.row_at_PJ: torch.Tensor | None = None
        """Row at each place (any row at an empty place); None: row i is at place i."""
        self.place_of_N: torch.Tensor | None = None
        self.masks: dict[int | None, torch.Tensor | None] = {}

    def grow(self) -> None:
        """Adds a column for the next token. Call once per decoding step, before the model runs."""
        self.used += 1
        self.masks = {}

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only these rows: finished completions leave the batch, and so do groups without rows."""
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
        """query [N, H * R, 1, D], key and value [N, H, 1, D]; returns [N, 1, H * R, D]."""
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
        # The queries of a group that share a key head are one longer query: a prompt's keys are read once per group.
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
        """True where a row may not attend: before its prompt's start or the window's. None: nowhere."""
        if window not in self.masks:
            # Prompts end in the same column and own tokens follow: a column has the same distance in all rows.
            column_S = torch.arange(Q + self.used, device=self.lengths_P.device)
            first_P1 = (Q - self.lengths_P)[:, None]
            if window is not None:
                first_P1 = first_P1.clamp(min=Q + self.used - window)
            masked = column_S < first_P1
            self.masks[window] = masked[:, None, None] if bool(masked.any()) else None
        return self.masks[window]
