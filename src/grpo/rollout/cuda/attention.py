"""Attention of a decoding step on a GPU: one query per row, over its prompt's keys and its own."""

from __future__ import annotations

import torch

from grpo.model.fused.weights import Layer
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.batch import DecodeBatch
from grpo.rollout.cuda.decoder import depends
from grpo.rollout.cuda.kernels import Rotation
from grpo.rollout.cuda.kv_cache import KvCache
from grpo.rollout.schedule import BLOCK_TOKENS


class DecodeAttention:
    """Implements `attention.Layout` for stock models, and `decoder.Attend` for fused ones."""

    def __init__(self, cache: KvCache, batch: DecodeBatch, rotation: Rotation | None):
        self.cache, self.batch, self.rotation = cache, batch, rotation

    def fused(self, index: int, qkv_BE: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Attends from queries, keys and values that are neither rounded nor biased yet, and stores these keys and
        values."""
        assert self.rotation is not None
        cache, batch, tables, heads = self.cache, self.batch, self.cache.tables, self.cache.heads
        cached, dependent = cache.layers[index], depends(len(qkv_BE), layer)
        if kernels.fits_one_program(len(qkv_BE), tables, cached):
            splits = cache.splits(len(qkv_BE))
            settings = batch, cache.partial, heads, layer.scale, layer.window, layer.norms, splits, dependent
            return kernels.whole_attention(qkv_BE, layer.qkv.bias, cached, tables, self.rotation, *settings)
        places = cached, tables.own_NT, self.rotation, batch
        qkv_BE = kernels.rotate_and_store(qkv_BE, layer.qkv.bias, *places, heads, layer.norms, dependent)
        return self._attention(index, qkv_BE, layer.scale, layer.window, dependent)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """For a stock model, which has rotated queries and keys."""
        B, heads, _, width = query.shape
        index_B = self.batch.time_B[:B].long() - 1
        block_B = self.cache.tables.own_NT[self.batch.owner_B[:B].long(), index_B // BLOCK_TOKENS].long()
        for cached, values in zip(self.cache.layers[layer], (key, value), strict=True):
            cached[block_B, :, index_B % BLOCK_TOKENS] = values[:, :, 0]
        scale = width**-0.5 if scaling is None else scaling
        return self._attention(layer, query.reshape(B, -1).contiguous(), scale, window).view(B, 1, heads, width)

    def _attention(
        self, layer: int, q_BE: torch.Tensor, scale: float, window: int | None, dependent: bool = False
    ) -> torch.Tensor:
        cache = self.cache
        settings = self.batch, cache.partial, cache.heads, scale, window, cache.splits(len(q_BE)), dependent
        return kernels.attention(q_BE, cache.layers[layer], cache.tables, *settings)
