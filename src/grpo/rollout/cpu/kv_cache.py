"""KV caches of decoding on a CPU: rows come and go, and a prompt is shared by the completions of its group.

`PromptCache` holds each prompt's keys and values once. `SharedPromptCache` reads them once per token for the whole
group; `DecodeCache` copies them to every row, for 16-bit precisions. A GPU has its own
cache (`rollout/cuda/kv_cache.py`).

All rows share one clock: with every token of the batch, own keys and values grow by one column. A row that starts late
has a first column; it does not attend to the columns before it. Columns before the first of all rows are dropped.

Axis letters in addition to types.py: Q tokens of the longest prompt, H key heads, R query heads that share a key head,
D head width, S keys (prompt and own) or own columns, J places for completions in a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

FIRST_COLUMNS = 64
"""Own columns that a cache has room for at first. It doubles when they are used up."""

KeysValues = tuple[torch.Tensor, torch.Tensor]


class PromptCache:
    """Keys and values of each prompt, computed once per group: per layer [P, H, Q, D], aligned at the end."""

    def __init__(self) -> None:
        self.layers: dict[int, KeysValues] = {}

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        Q = k_PHQD.shape[2]
        # With aligned ends, the first sampled token of every row has the same column.
        shift_P1 = (Q - lengths_P)[:, None]
        column_PQ = (torch.arange(Q, device=k_PHQD.device) - shift_P1) % Q
        index = column_PQ[:, None, :, None].expand_as(k_PHQD)
        self.layers[layer] = (k_PHQD.gather(2, index), v_PHQD.gather(2, index))


class RowCache(ABC):
    """Keys and values of the rows that are decoded now, and of their prompts."""

    def __init__(self, new_tokens: int, device: torch.device):
        self.new_tokens = new_tokens
        self.prompts: dict[int, KeysValues] = {}
        """Per layer [P, H, Q, D], aligned at the end."""
        self.lengths_P = torch.zeros(0, dtype=torch.int64, device=device)
        self.rows: dict[int, KeysValues] = {}
        """Per layer [..., columns, D]; `capacity` columns at the end are for own tokens."""
        self.first_N = torch.zeros(0, dtype=torch.int64, device=device)
        """First own column of each row."""
        self.late = False
        """Whether some row started after another."""
        self.prompt_of_N = torch.zeros(0, dtype=torch.int64, device=device)
        self.used, self.capacity = 0, 0
        """Own columns: in use, and allocated."""
        self.masks: dict[int | None, torch.Tensor | None] = {}

    @property
    def prompt_columns(self) -> int:
        return next(iter(self.prompts.values()))[0].shape[2]

    def join(self, prompts: PromptCache, lengths_P: torch.Tensor) -> None:
        """Adds prompts, numbered after those there are. Call `arrange` next: a prompt without rows leaves."""
        if not self.prompts:
            self.prompts, self.lengths_P = prompts.layers, lengths_P
            return
        self.lengths_P = torch.cat([self.lengths_P, lengths_P])
        Q = int(self.lengths_P.max())

        def joined(*parts_PHQD: torch.Tensor) -> torch.Tensor:
            # Padding is at the start: columns are added there, or removed if the longest prompt has left.
            return torch.cat([F.pad(x_PHQD, (0, 0, Q - x_PHQD.shape[2], 0)) for x_PHQD in parts_PHQD])

        for layer, (k_PHQD, v_PHQD) in prompts.layers.items():
            held_k, held_v = self.prompts[layer]
            self.prompts[layer] = joined(held_k, k_PHQD), joined(held_v, v_PHQD)

    def arrange(self, row_N: torch.Tensor, prompt_N: torch.Tensor) -> None:
        """Makes these the rows: each with its row up to now, or -1 if it starts, and the number of its prompt.

        The rows of a prompt are adjacent. Other rows leave, and prompts without rows.
        """
        kept_P, group_N, counts_P = torch.unique_consecutive(prompt_N, return_inverse=True, return_counts=True)
        if not torch.equal(kept_P, torch.arange(len(self.lengths_P), device=kept_P.device)):
            self.prompts = {layer: (k[kept_P], v[kept_P]) for layer, (k, v) in self.prompts.items()}
            self.lengths_P = self.lengths_P[kept_P]
        first_N = F.pad(self.first_N, (0, 1), value=self.used)[row_N]  # -1: the column after those in use
        oldest = int(first_N.min())
        capacity = self._capacity(self.used - oldest + 1)
        self._move(row_N, group_N, counts_P, slice(oldest, self.used), capacity)
        self.first_N, self.prompt_of_N = first_N - oldest, group_N
        self.late = bool((self.first_N > 0).any())
        self.used, self.capacity, self.masks = self.used - oldest, capacity, {}

    def grow(self) -> None:
        """Adds a column for the next token. Call once per decoding step, before the model runs."""
        self.used += 1
        self.masks = {}
        if self.used > self.capacity:
            more = self._capacity(self.used) - self.capacity
            for layer, (k, v) in self.rows.items():  # one layer at a time: its old columns are freed before the next
                self.rows[layer] = F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more))
            self.capacity += more

    def _capacity(self, columns: int) -> int:
        capacity = FIRST_COLUMNS
        while capacity < columns:
            capacity *= 2
        # Where all rows started together, there are never more columns than new tokens.
        return min(capacity, self.new_tokens) if columns <= self.new_tokens else capacity

    @abstractmethod
    def _move(
        self, row_N: torch.Tensor, group_N: torch.Tensor, counts_P: torch.Tensor, columns: slice, capacity: int
    ) -> None:
        """Moves rows as `arrange` says, with these own columns only. `group_N`: numbers of the prompts that stay."""

    @abstractmethod
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

    def _masked(self, lengths: torch.Tensor, first: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """True where rows with prompts of these lengths and these first columns may not attend: before the prompt's
        start, the row's, or the window's. [..., Q + own columns]; None: nowhere."""
        Q, used = self.prompt_columns, self.used
        lengths, first = torch.broadcast_tensors(lengths, first)
        prompt_start, own_start = Q - lengths, first
        if window is not None:
            # A row's own tokens follow its prompt's last one, although columns of earlier rows may lie between them.
            prompt_start = torch.maximum(prompt_start, Q + used - first - window)
            own_start = own_start.clamp(min=used - window)
        column_Q, column_S = (torch.arange(columns, device=first.device) for columns in (Q, used))
        masked = torch.cat([column_Q < prompt_start[..., None], column_S < own_start[..., None]], dim=-1)
        return masked if bool(masked.any()) else None


class DecodeCache(RowCache):
    """A copy of its prompt's keys and values for every row, [N, H, Q + own columns, D]."""

    def _move(
        self, row_N: torch.Tensor, group_N: torch.Tensor, counts_P: torch.Tensor, columns: slice, capacity: int
    ) -> None:
        Q, used = self.prompt_columns, columns.stop - columns.start

        def moved(prompts_PHQD: torch.Tensor, old_NHSD: torch.Tensor | None) -> torch.Tensor:
            _, H, _, D = prompts_PHQD.shape
            new_NHSD = prompts_PHQD.new_empty(len(row_N), H, Q + capacity, D)
            new_NHSD[:, :, :Q] = prompts_PHQD[group_N]
            if old_NHSD is not None and used:
                own_NHSD = old_NHSD[:, :, old_NHSD.shape[2] - self.capacity :]
                new_NHSD[:, :, Q : Q + used] = own_NHSD[:, :, columns][row_N]
                new_NHSD[row_N < 0, :, Q : Q + used] = 0  # masked, but 0 x NaN is NaN
            return new_NHSD

        for layer, (k_PHQD, v_PHQD) in self.prompts.items():
            old_k, old_v = self.rows.get(layer, (None, None))
            self.rows[layer] = moved(k_PHQD, old_k), moved(v_PHQD, old_v)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        k_NHSD, v_NHSD = self.rows[layer]
        columns = self.prompt_columns + self.used
        k_NHSD[:, :, columns - 1] = key[:, :, 0]
        v_NHSD[:, :, columns - 1] = value[:, :, 0]
        N, heads, _, width = query.shape
        # Query heads that share a key head are laid out as one longer query, so that no key is copied.
        out = F.scaled_dot_product_attention(
            query.reshape(N, k_NHSD.shape[1], -1, width),
            k_NHSD[:, :, :columns],
            v_NHSD[:, :, :columns],
            attn_mask=self._mask(window),
            scale=scaling,
        )
        return out.reshape(N, 1, heads, width)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """bool [N, 1, 1, S]: where each row attends. None: everywhere."""
        if window not in self.masks:
            masked_NS = self._masked(self.lengths_P[self.prompt_of_N], self.first_N, window)
            self.masks[window] = None if masked_NS is None else ~masked_NS[:, None, None]
        return self.masks[window]


class SharedPromptCache(RowCache):
    """Own keys and values of the rows, with each prompt's once for its group: for float32 and float64.

    Rows stand in a grid of groups and places, [P, J], as wide as the fullest group: own keys are [P, H, J, S, D].
    """

    def __init__(self, new_tokens: int, device: torch.device):
        super().__init__(new_tokens, device)
        self.shape = 0, 0
        self.row_at_PJ: torch.Tensor | None = None
        """Row at each place (any row at an empty place); None: row i is at place i."""
        self.place_of_N: torch.Tensor | None = None

    def _move(
        self, row_N: torch.Tensor, group_N: torch.Tensor, counts_P: torch.Tensor, columns: slice, capacity: int
    ) -> None:
        (_, old_J), device, used = self.shape, row_N.device, columns.stop - columns.start
        P, J = len(counts_P), int(counts_P.max())
        rank_N = torch.arange(len(row_N), device=device) - (counts_P.cumsum(0) - counts_P)[group_N]
        place_N = group_N * J + rank_N
        row_at_PJ = torch.zeros(P * J, dtype=torch.int64, device=device)
        row_at_PJ[place_N] = torch.arange(len(row_N), device=device)

        def moved(old_PHJSD: torch.Tensor | None, prompts_PHQD: torch.Tensor) -> torch.Tensor:
            _, H, _, D = prompts_PHQD.shape
            new_PHJSD = prompts_PHQD.new_empty(P, H, J, capacity, D)
            if old_PHJSD is not None and used:
                picked = old_PHJSD[:, :, :, columns][old_PJ // old_J, :, old_PJ % old_J]
                picked[starts_PJ] = 0  # masked, but 0 x NaN is NaN
                new_PHJSD[:, :, :, :used] = picked.view(P, J, *picked.shape[1:]).transpose(1, 2)
            return new_PHJSD

        if used:
            old_place_N = row_N if self.place_of_N is None else self.place_of_N[row_N]
            old_PJ, starts_PJ = old_place_N[row_at_PJ], (row_N < 0)[row_at_PJ]
        for layer, (k_PHQD, v_PHQD) in self.prompts.items():
            old_k, old_v = self.rows.get(layer, (None, None))
            self.rows[layer] = moved(old_k, k_PHQD), moved(old_v, v_PHQD)
        self.shape = P, J
        full = len(row_N) == P * J
        self.row_at_PJ, self.place_of_N = (None, None) if full else (row_at_PJ, place_N)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        (P, J), (k_PHJSD, v_PHJSD) = self.shape, self.rows[layer]
        H, D = key.shape[1], key.shape[3]
        q_PHJRD = self._grid(query).view(P, J, H, -1, D).transpose(1, 2)
        k_PHJSD[:, :, :, self.used - 1] = self._grid(key).view(P, J, H, D).transpose(1, 2)
        v_PHJSD[:, :, :, self.used - 1] = self._grid(value).view(P, J, H, D).transpose(1, 2)
        mixed_PHJRD = self._mixed(layer, q_PHJRD * (D**-0.5 if scaling is None else scaling), window)
        out = mixed_PHJRD.transpose(1, 2).reshape(P * J, 1, -1, D)
        return out if self.place_of_N is None else out[self.place_of_N]

    def _mixed(self, layer: int, q_PHJRD: torch.Tensor, window: int | None) -> torch.Tensor:
        P, H, J, R, D = q_PHJRD.shape
        own_k, own_v = (x_PHJSD.view(P * H * J, -1, D)[:, : self.used] for x_PHJSD in self.rows[layer])
        prompt_k, prompt_v = (x_PHQD.view(P * H, -1, D) for x_PHQD in self.prompts[layer])
        Q = prompt_k.shape[1]
        # The queries of a group that share a key head are one longer query: a prompt's keys are read once per group.
        q = q_PHJRD.contiguous().view(P * H, J * R, D)
        prompt_scores = torch.bmm(q, prompt_k.transpose(1, 2))
        own_scores = torch.bmm(q.view(P * H * J, R, D), own_k.transpose(1, 2))
        scores = torch.cat([prompt_scores.view(P, H, J, R, -1), own_scores.view(P, H, J, R, -1)], dim=-1)
        mask_P1J1S = self._mask(window)
        if mask_P1J1S is not None:
            scores = scores.masked_fill(mask_P1J1S, float("-inf"))
        weight = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(weight.view(P * H, J * R, -1)[:, :, :Q], prompt_v)
        mixed = torch.baddbmm(mixed.view(P * H * J, R, D), weight.view(P * H * J, R, -1)[:, :, Q:], own_v)
        return mixed.view(P, H, J, R, D)

    def _grid(self, x_NH1D: torch.Tensor) -> torch.Tensor:
        return x_NH1D if self.row_at_PJ is None else x_NH1D[self.row_at_PJ]

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """True where a row may not attend, [P, 1, J, 1, S] (J 1 where no row started late). None: nowhere."""
        if window not in self.masks:
            first_PJ = self._grid(self.first_N).view(self.shape) if self.late else self.first_N.new_zeros(1, 1)
            masked_PJS = self._masked(self.lengths_P[:, None], first_PJ, window)
            self.masks[window] = None if masked_PJS is None else masked_PJS[:, None, :, None]
        return self.masks[window]
