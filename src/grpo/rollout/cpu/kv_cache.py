"""KV caches of decoding on a CPU: rows come and go, and a prompt is shared by the completions of its group.

`PromptCache` holds each prompt's keys and values once. `SharedPromptCache` reads them once per token for the whole
group; `DecodeCache` copies them to every row, for 16-bit precisions. A GPU has its own
cache (`rollout/cuda/kv_cache.py`).

All rows share one clock: with every token of the batch, own keys and values grow by one column. A row that starts late
has a first column; it does not attend to the columns before it. Columns before the first of all rows are dropped. A row
whose turn has ended can be saved, and restored when it goes on: its own columns then end with those of the others.

Axis letters in addition to types.py: Q tokens of the longest prompt, H key heads, R query heads that share a key head,
D head width, S keys (prompt and own) or own columns, J places for completions in a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F

FIRST_COLUMNS = 64
"""Own columns that a cache has room for at first. It doubles when they are used up."""

KeysValues = tuple[torch.Tensor, torch.Tensor]


class PromptCache:
    """Keys and values of each prompt, computed once per group: per layer [H, P, Q, D], aligned at the end."""

    def __init__(self) -> None:
        self.layers: dict[int, KeysValues] = {}

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        Q = k_PHQD.shape[2]
        # With aligned ends, the first sampled token of every row has the same column.
        shift_P1 = (Q - lengths_P)[:, None]
        column_PQ = (torch.arange(Q, device=k_PHQD.device) - shift_P1) % Q
        k_HPQD, v_HPQD = k_PHQD.transpose(0, 1), v_PHQD.transpose(0, 1)
        index = column_PQ[..., None].expand_as(k_HPQD)
        self.layers[layer] = (k_HPQD.gather(2, index), v_HPQD.gather(2, index))


@dataclass(frozen=True, eq=False)
class SavedRows:
    """Own keys and values of rows that have left the batch and may come back."""

    layers: dict[int, KeysValues]
    """Per layer [N, columns, H, D], aligned at the end; columns before a row's first are not read."""
    columns_N: torch.Tensor
    """Own columns of each row."""


class RowCache(ABC):
    """Keys and values of the rows that are decoded now, and of their prompts."""

    def __init__(self, new_tokens: int, device: torch.device):
        self.new_tokens = new_tokens
        self.prompts: dict[int, KeysValues] = {}
        """Per layer [H, P, Q, D], aligned at the end."""
        self.lengths_P = torch.zeros(0, dtype=torch.int64, device=device)
        self.rows: dict[int, KeysValues] = {}
        """Per layer [..., columns, D]; `capacity` columns at the end are for own tokens."""
        self.first_N = torch.zeros(0, dtype=torch.int64, device=device)
        """First own column of each row."""
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

        def joined(*parts_HPQD: torch.Tensor) -> torch.Tensor:
            # Padding is at the start: columns are added there, or removed if the longest prompt has left.
            return torch.cat([F.pad(x_HPQD, (0, 0, Q - x_HPQD.shape[2], 0)) for x_HPQD in parts_HPQD], dim=1)

        for layer, (k_HPQD, v_HPQD) in prompts.layers.items():
            held_k, held_v = self.prompts[layer]
            self.prompts[layer] = joined(held_k, k_HPQD), joined(held_v, v_HPQD)

    def arrange(self, row_N: torch.Tensor, prompt_N: torch.Tensor, kept_P: torch.Tensor, columns: int = 0) -> None:
        """Makes these the rows: each with its row up to now, or -1 if it starts or comes back, and its prompt.

        `kept_P`: numbers up to now of the prompts that stay, in their new order; `prompt_N`: new numbers, in order.
        Other rows and prompts leave. `columns`: own columns to have at least, for rows that come back.
        """
        if not torch.equal(kept_P, torch.arange(len(self.lengths_P), device=kept_P.device)):
            for layer, (k_HPQD, v_HPQD) in self.prompts.items():
                self.prompts[layer] = k_HPQD.index_select(1, kept_P), v_HPQD.index_select(1, kept_P)
            self.lengths_P = self.lengths_P[kept_P]
        first_N = F.pad(self.first_N, (0, 1), value=self.used)[row_N]  # -1: the column after those in use
        oldest = int(first_N.min())
        used = max(self.used - oldest, columns)
        capacity = self._capacity(used + 1)
        self._move(row_N, prompt_N, slice(oldest, self.used), used, capacity)
        self.first_N, self.prompt_of_N = first_N + used - self.used, prompt_N
        self.used, self.capacity, self.masks = used, capacity, {}

    def save(self, row_N: torch.Tensor, columns_N: torch.Tensor) -> SavedRows:
        """Copies the first own columns of these rows: `columns_N` of each."""
        column_S = torch.arange(int(columns_N.max()), device=row_N.device)
        column_NS = (column_S + (self.first_N[row_N] + columns_N - len(column_S))[:, None]).clamp(min=0)
        at = row_N[:, None], slice(None), column_NS
        return SavedRows(
            {layer: (self._own(k)[at], self._own(v)[at]) for layer, (k, v) in self.rows.items()}, columns_N
        )

    def restore(self, row_N: torch.Tensor, saved: SavedRows, index_N: torch.Tensor, columns_N: torch.Tensor) -> None:
        """Writes the first `columns_N` columns of saved rows to these rows, which `arrange` has made; they end at the
        last column in use."""
        width = int(columns_N.max())
        self.first_N[row_N] = self.used - columns_N
        for layer, (k, v) in self.rows.items():
            for own, saved_NSHD in zip((k, v), saved.layers[layer], strict=True):
                column_S = torch.arange(saved_NSHD.shape[1] - width, saved_NSHD.shape[1], device=row_N.device)
                column_NS = (column_S - (saved.columns_N[index_N] - columns_N)[:, None]).clamp(min=0)
                restored_NSHD = saved_NSHD[index_N[:, None], column_NS]
                self._own(own)[row_N, :, self.used - width : self.used] = restored_NSHD.transpose(1, 2)

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
    def _move(self, row_N: torch.Tensor, prompt_N: torch.Tensor, columns: slice, used: int, capacity: int) -> None:
        """Moves rows as `arrange` says, with these own columns only, which become the last of `used`."""

    @abstractmethod
    def _own(self, rows: torch.Tensor) -> torch.Tensor:
        """The own columns of all rows, as a view [N, H, S, D]."""

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

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """True where a row may not attend: before its prompt's start, its own, or the window's. [N, Q + own columns];
        None: nowhere."""
        if window not in self.masks:
            Q, used, lengths_N = self.prompt_columns, self.used, self.lengths_P[self.prompt_of_N]
            prompt_start_N, own_start_N = Q - lengths_N, self.first_N
            if window is not None:
                # A row's own tokens follow its prompt's last one, although columns of earlier rows may lie between.
                prompt_start_N = torch.maximum(prompt_start_N, Q + used - self.first_N - window)
                own_start_N = own_start_N.clamp(min=used - window)
            column_Q, column_S = (torch.arange(columns, device=self.first_N.device) for columns in (Q, used))
            masked_NS = torch.cat([column_Q < prompt_start_N[:, None], column_S < own_start_N[:, None]], dim=1)
            self.masks[window] = masked_NS if bool(masked_NS.any()) else None
        return self.masks[window]


class DecodeCache(RowCache):
    """A copy of its prompt's keys and values for every row, [N, H, Q + own columns, D]."""

    def _move(self, row_N: torch.Tensor, prompt_N: torch.Tensor, columns: slice, used: int, capacity: int) -> None:
        Q, first = self.prompt_columns, used - (columns.stop - columns.start)

        def moved(prompts_HPQD: torch.Tensor, old_NHSD: torch.Tensor | None) -> torch.Tensor:
            H, _, _, D = prompts_HPQD.shape
            new_NHSD = prompts_HPQD.new_empty(len(row_N), H, Q + capacity, D)
            new_NHSD[:, :, :Q] = prompts_HPQD.transpose(0, 1)[prompt_N]
            new_NHSD[:, :, Q : Q + first] = 0
            if old_NHSD is not None and first < used:
                new_NHSD[:, :, Q + first : Q + used] = self._own(old_NHSD)[:, :, columns][row_N]
                new_NHSD[row_N < 0, :, Q + first : Q + used] = 0  # masked, but 0 x NaN is NaN
            return new_NHSD

        for layer, (k_HPQD, v_HPQD) in self.prompts.items():
            old_k, old_v = self.rows.get(layer, (None, None))
            self.rows[layer] = moved(k_HPQD, old_k), moved(v_HPQD, old_v)

    def _own(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, :, rows.shape[2] - self.capacity :]

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
        masked_NS = self._mask(window)
        # Query heads that share a key head are laid out as one longer query, so that no key is copied.
        out = F.scaled_dot_product_attention(
            query.reshape(N, k_NHSD.shape[1], -1, width),
            k_NHSD[:, :, :columns],
            v_NHSD[:, :, :columns],
            attn_mask=None if masked_NS is None else ~masked_NS[:, None, None],
            scale=scaling,
        )
        return out.reshape(N, 1, heads, width)


class SharedPromptCache(RowCache):
    """Own keys and values of the rows, [H, N, S, D], with each prompt's once for its group: for float32 and float64.

    Only where queries meet prompts do rows stand in a grid of groups and places, [P, J], as wide as the fullest group.
    """

    def __init__(self, new_tokens: int, device: torch.device):
        super().__init__(new_tokens, device)
        self.shape = 0, 0
        self.row_at_PJ: torch.Tensor | None = None
        """Row at each place (any row at an empty place); None: row i is at place i."""
        self.place_of_N: torch.Tensor | None = None

    def _move(self, row_N: torch.Tensor, prompt_N: torch.Tensor, columns: slice, used: int, capacity: int) -> None:
        N, first = len(row_N), used - (columns.stop - columns.start)

        def moved(old_HNSD: torch.Tensor | None, prompts_HPQD: torch.Tensor) -> torch.Tensor:
            H, _, _, D = prompts_HPQD.shape
            new_HNSD = prompts_HPQD.new_empty(H, N, capacity, D)
            new_HNSD[:, :, :first] = 0
            if old_HNSD is not None and first < used:
                new_HNSD[:, :, first:used] = old_HNSD[:, :, columns].index_select(1, row_N.clamp(min=0))
                new_HNSD[:, row_N < 0, first:used] = 0  # masked, but 0 x NaN is NaN
            return new_HNSD

        for layer, (k_HPQD, v_HPQD) in self.prompts.items():
            old_k, old_v = self.rows.get(layer, (None, None))
            self.rows[layer] = moved(old_k, k_HPQD), moved(old_v, v_HPQD)
        counts_P = torch.bincount(prompt_N, minlength=len(self.lengths_P))
        P, J = self.shape = len(counts_P), int(counts_P.max())
        self.row_at_PJ = self.place_of_N = None
        if N < P * J:
            number_N = torch.arange(N, device=row_N.device)
            rank_N = number_N - (counts_P.cumsum(0) - counts_P)[prompt_N]
            self.place_of_N = prompt_N * J + rank_N
            self.row_at_PJ = number_N.new_zeros(P * J).index_copy(0, self.place_of_N, number_N)

    def _own(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.transpose(0, 1)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        k_HNSD, v_HNSD = self.rows[layer]
        k_HNSD[:, :, self.used - 1] = key[:, :, 0].transpose(0, 1)
        v_HNSD[:, :, self.used - 1] = value[:, :, 0].transpose(0, 1)
        N, H, _, D = key.shape
        q_HNRD = query.view(N, H, -1, D).transpose(0, 1) * (D**-0.5 if scaling is None else scaling)
        return self._mixed(layer, q_HNRD.contiguous(), window).transpose(0, 1).reshape(N, 1, -1, D)

    def _mixed(self, layer: int, q_HNRD: torch.Tensor, window: int | None) -> torch.Tensor:
        (H, N, R, D), (P, J), Q = q_HNRD.shape, self.shape, self.prompt_columns
        own_k, own_v = (x_HNSD.view(H * N, -1, D)[:, : self.used] for x_HNSD in self.rows[layer])
        prompt_k, prompt_v = (x_HPQD.view(H * P, Q, D) for x_HPQD in self.prompts[layer])
        # The queries of a group that share a key head are one longer query: a prompt's keys are read once per group.
        prompt_scores = torch.bmm(self._grid(q_HNRD).view(H * P, J * R, D), prompt_k.transpose(1, 2))
        own_scores = torch.bmm(q_HNRD.view(H * N, R, D), own_k.transpose(1, 2))
        prompt_HNRQ = self._flat(prompt_scores.view(H, P * J, R, Q))
        scores_HNRS = torch.cat([prompt_HNRQ, own_scores.view(H, N, R, -1)], dim=-1)
        masked_NS = self._mask(window)
        if masked_NS is not None:
            scores_HNRS = scores_HNRS.masked_fill(masked_NS[:, None], float("-inf"))
        weight_HNRS = torch.softmax(scores_HNRS, dim=-1)
        mixed = torch.bmm(self._grid(weight_HNRS[..., :Q]).view(H * P, J * R, Q), prompt_v)
        mixed_HNRD = self._flat(mixed.view(H, P * J, R, D))
        mixed = torch.baddbmm(mixed_HNRD.view(H * N, R, D), weight_HNRS.view(H * N, R, -1)[:, :, Q:], own_v)
        return mixed.view(H, N, R, D)

    def _grid(self, x_HN: torch.Tensor) -> torch.Tensor:
        """Rows as places."""
        return x_HN if self.row_at_PJ is None else x_HN.index_select(1, self.row_at_PJ)

    def _flat(self, x_HJ: torch.Tensor) -> torch.Tensor:
        """Places as rows."""
        return x_HJ if self.place_of_N is None else x_HJ.index_select(1, self.place_of_N)
