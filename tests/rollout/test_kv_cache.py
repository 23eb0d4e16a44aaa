"""KV caches whose rows come and go, against attention over each row's own list of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from grpo.rollout.cpu.kv_cache import DecodeCache, PromptCache, RowCache, SharedPromptCache

WIDTH, QUERY_HEADS = 8, 6


@dataclass(eq=False)
class Prompt:
    k_HQD: torch.Tensor
    v_HQD: torch.Tensor


@dataclass(eq=False)
class Row:
    prompt: Prompt
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    def attend(self, query_RD: torch.Tensor, window: int | None) -> torch.Tensor:
        k_HSD, v_HSD = (
            torch.cat([prompt, *own], dim=1)[:, -(window or 1000) :]
            for prompt, own in ((self.prompt.k_HQD, self.keys), (self.prompt.v_HQD, self.values))
        )
        shared = QUERY_HEADS // len(k_HSD)
        weight_HRS = torch.softmax(0.3 * query_RD.view(len(k_HSD), shared, WIDTH) @ k_HSD.transpose(1, 2), dim=-1)
        return (weight_HRS @ v_HSD).view(QUERY_HEADS, WIDTH)


class Rows:
    """The rows of two caches, and what each should hold."""

    def __init__(self, key_heads: int):
        self.key_heads = key_heads
        self.generator = torch.Generator().manual_seed(key_heads)
        device = torch.device("cpu")
        self.caches: list[RowCache] = [kind(8, device) for kind in (SharedPromptCache, DecodeCache)]
        self.prompts: list[Prompt] = []
        """Those in the caches, in their order."""
        self.rows: list[Row] = []

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def join(self, *lengths: int) -> None:
        H, Q = self.key_heads, max(lengths)
        k_PHQD, v_PHQD = self.random(len(lengths), H, Q, WIDTH), self.random(len(lengths), H, Q, WIDTH)
        self.prompts += [Prompt(k[:, :n], v[:, :n]) for k, v, n in zip(k_PHQD, v_PHQD, lengths, strict=True)]
        for cache in self.caches:
            computed, lengths_P = PromptCache(), torch.tensor(lengths)
            computed.store(0, k_PHQD, v_PHQD, lengths_P)
            cache.join(computed, lengths_P)

    def arrange(self, kept: list[int], starts: dict[int, int]) -> None:
        """Keeps these rows, and starts some rows of some prompts."""
        rows = [self.rows[i] for i in kept]
        rows += [Row(self.prompts[prompt]) for prompt, count in starts.items() for _ in range(count)]
        rows.sort(key=lambda row: self.prompts.index(row.prompt))
        old = {row: i for i, row in enumerate(self.rows)}
        row_N = torch.tensor([old.get(row, -1) for row in rows])
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        prompt_N = torch.tensor([prompts.index(row.prompt) for row in rows])
        kept_P = torch.tensor([self.prompts.index(prompt) for prompt in prompts])
        for cache in self.caches:
            cache.arrange(row_N, prompt_N, kept_P)
        self.rows, self.prompts = rows, prompts

    def pause_and_go_on(self, paused: list[int], columns: list[int]) -> None:
        """These rows leave, and come back with the first of their own columns while the others stay."""
        row_N, columns_N = torch.tensor(paused), torch.tensor(columns)
        held_N = torch.tensor([len(self.rows[i].keys) for i in paused])
        kept_P = torch.arange(len(self.prompts))
        others = [i for i in range(len(self.rows)) if i not in paused]
        prompt_N = torch.tensor([self.prompts.index(row.prompt) for row in self.rows])
        for cache in self.caches:
            saved = cache.save(row_N, held_N)
            if others:
                cache.arrange(torch.tensor(others), prompt_N[others], kept_P)
            before = torch.tensor([others.index(i) if i in others else -1 for i in range(len(self.rows))])
            cache.arrange(before, prompt_N, kept_P, max(columns))
            cache.restore(row_N, saved, torch.arange(len(paused)), columns_N)
        for i, count in zip(paused, columns, strict=True):
            row = self.rows[i]
            row.keys, row.values = row.keys[:count], row.values[:count]

    def check_step(self, windows: tuple[int | None, ...]) -> None:
        # As models hand them over: parts of one product, heads first by view alone.
        heads = self.random(len(self.rows), 1, QUERY_HEADS + 2 * self.key_heads, WIDTH).transpose(1, 2)
        query, key, value = heads.split([QUERY_HEADS, self.key_heads, self.key_heads], dim=1)
        for row, k, v in zip(self.rows, key, value, strict=True):
            row.keys.append(k)
            row.values.append(v)
        for cache in self.caches:
            cache.grow()
            for window in windows:
                found = cache.attend(0, query, key, value, 0.3, window)
                expected = [row.attend(q[:, 0], window) for row, q in zip(self.rows, query, strict=True)]
                torch.testing.assert_close(found[:, 0], torch.stack(expected), atol=1e-12, rtol=0)


@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_rows_attend_to_their_prompt_and_their_own_tokens(key_heads: int) -> None:
    """Rows leave unevenly, then a whole group, then all groups but one, then all rows but one."""
    rows = Rows(key_heads)
    rows.join(5, 2, 7)
    rows.arrange([], {0: 4, 1: 4, 2: 4})
    leaving = {1: [0, 2, 4, 5, 6, 8, 9, 10, 11], 2: [0, 1, 5, 6, 7, 8], 4: [3, 4], 5: [1]}
    for t in range(6):
        if t in leaving:
            rows.arrange(leaving[t], {})
        rows.check_step((None, 4))
    assert all(cache.capacity == 8 for cache in rows.caches), "no more columns than new tokens"


def test_rows_that_start_late_do_not_attend_to_earlier_columns() -> None:
    rows = Rows(key_heads=2)
    rows.join(5, 2)
    rows.arrange([], {0: 2, 1: 1})
    rows.check_step((None, 4))
    rows.join(9)  # a longer prompt: 4 more columns of padding for the others
    rows.arrange([0, 1], {0: 1, 2: 2})  # the second prompt leaves
    for _ in range(3):
        rows.check_step((None, 4))
    assert rows.caches[0].first_N.tolist() == [0, 0, 1, 1, 1]
    rows.arrange([2, 4], {})  # the rows that started first leave: one column is dropped
    assert [cache.used for cache in rows.caches] == [3, 3]
    rows.arrange([], {1: 3})  # only new rows, of a prompt that the caches hold
    assert [cache.used for cache in rows.caches] == [0, 0]
    rows.check_step((None, 4))
    rows.join(3)
    assert [cache.prompt_columns for cache in rows.caches] == [9, 9]
    rows.arrange([], {1: 1})
    rows.join(1)
    assert [cache.prompt_columns for cache in rows.caches] == [3, 3], "padding that no prompt needs is removed"
    rows.arrange([0], {1: 1})
    rows.check_step((None, 4))


def test_values_of_earlier_rows_never_reach_a_late_one() -> None:
    """0 x NaN is NaN: masked columns must not hold what a row before left there."""
    rows = Rows(key_heads=2)
    rows.join(5, 3)
    rows.arrange([], {0: 2, 1: 1})
    rows.check_step((None,))
    for cache, axis in zip(rows.caches, (1, 0), strict=True):
        for tensors in cache.rows.values():
            for tensor in tensors:
                tensor.narrow(axis, 1, 2).fill_(float("nan"))  # of all rows but the first
    rows.arrange([0], {0: 1, 1: 1})
    rows.check_step((None, 4))


def test_own_keys_are_held_for_rows_alone() -> None:
    """Two groups with one row left stand beside a full one: 3 x 4 places over prompts, 6 rows of own keys."""
    rows = Rows(key_heads=2)
    rows.join(5, 2)
    rows.arrange([], {0: 4, 1: 4})
    rows.check_step((None, 4))
    rows.join(7)
    rows.arrange([3, 5], {2: 4})
    rows.check_step((None, 4))
    shared = rows.caches[0]
    assert isinstance(shared, SharedPromptCache)
    assert shared.shape == (3, 4)
    assert [tuple(tensor.shape) for tensor in shared.rows[0]] == [(2, 6, 8, WIDTH)] * 2
    rows.arrange([0, 1, 2], {})
    rows.check_step((None, 4))
    assert shared.shape == (3, 1)
    assert [tuple(tensor.shape) for tensor in shared.rows[0]] == [(2, 3, 8, WIDTH)] * 2


def test_paused_rows_go_on_with_their_own_columns() -> None:
    """Beside others, and alone; one goes on from before its end, one from its first token, one is the longest row."""
    rows = Rows(key_heads=2)
    rows.join(5, 2)
    rows.arrange([], {0: 2, 1: 1})
    for _ in range(3):
        rows.check_step((None, 4))
    rows.arrange([0, 1, 2], {1: 1})
    rows.check_step((None, 4))
    rows.pause_and_go_on([0, 3], [3, 0])
    rows.check_step((None, 4))
    assert [len(row.keys) for row in rows.rows] == [4, 5, 5, 1]
    rows.pause_and_go_on([1, 2], [5, 5])
    rows.check_step((None, 4))
    rows.pause_and_go_on([0, 1, 2, 3], [5, 2, 6, 2])
    for _ in range(2):
        rows.check_step((None, 4))
    assert rows.caches[0].first_N.tolist() == [1, 4, 0, 4]


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_come_and_go_at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.rollout.cpu.kv_cache.FIRST_COLUMNS", 2)
    generator = np.random.default_rng(seed)
    rows = Rows(key_heads=2)
    most = 0
    for _ in range(25):
        kept = [i for i in range(len(rows.rows)) if generator.random() < 0.8]
        if not kept or generator.random() < 0.3:
            rows.join(*generator.integers(1, 9, size=generator.integers(1, 3)).tolist())
        some = [i for i in range(len(rows.prompts)) if generator.random() < 0.4]
        starts = {i: int(generator.integers(1, 3)) for i in some or [len(rows.prompts) - 1]}
        rows.arrange(kept, starts)
        for _ in range(generator.integers(1, 4)):
            rows.check_step((None, 3, 7))
        most = max(most, rows.caches[0].capacity)
    assert most >= 16, "more columns than new tokens: rows go on while others start"
