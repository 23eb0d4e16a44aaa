"""The token lens: recorded values of each token of a completion, and one token's loss step by step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from grpo.config.presets import load_surrogate
from grpo.core import policy_loss, token_loss, token_terms
from grpo.errors import GrpoError
from grpo.model.hub import locate_model
from grpo.record.checkpoints import Checkpoints
from grpo.record.store import Run

ACCEPTED = frozenset(inspect.signature(policy_loss).parameters)
"""Settings that `policy_loss` takes; the others of a run's loss section affect its advantages."""

MOST_TOKENS_AT_ONCE = 2000


def loss_settings(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run's loss section that `policy_loss` takes and that need only one completion."""
    settings = {name: value for name, value in loss.items() if name in ACCEPTED - {"entropy", "correction"}}
    if loss.get("kl_in") == "reward":
        settings["beta"] = 0.0
    return settings


def left_out(loss: Mapping[str, Any]) -> list[str]:
    """Terms of the run's loss that are not included in the numbers of single tokens."""
    entropy, correction = loss.get("entropy", 0.0), loss.get("correction", "none")
    bonus = [f"the entropy bonus (loss.entropy {entropy:g})"] if entropy else []
    return bonus + ([f"the correction for the sampler (loss.correction {correction})"] if correction != "none" else [])


def tensor(array: np.ndarray) -> torch.Tensor:
    """A recorded float32 array in float64, so that computed values are exact to the recorded digits."""
    return torch.from_numpy(array.astype(np.float64))


class Traced:
    """One completion with recorded tokens, as inputs of `policy_loss`."""

    def __init__(self, row: Mapping[str, Any], loss: Mapping[str, Any]):
        self.row, self.settings = row, loss_settings(loss)
        self.updated = row["trainer_logprobs"] is not None
        self.sampler_L = tensor(row["logprobs"])
        # With one update, old and updated policy are the same; without any, only the sampler's values are known.
        self.logp_L = tensor(row["trainer_logprobs"]) if self.updated else self.sampler_L
        self.old_L = self.logp_L if row["old_logprobs"] is None else tensor(row["old_logprobs"])
        self.advantages_L = torch.zeros_like(self.logp_L) if row["advantages"] is None else tensor(row["advantages"])
        self.ref_L = None if row["ref_logprobs"] is None else tensor(row["ref_logprobs"])
        if self.ref_L is None:
            self.settings["beta"] = 0.0

    @property
    def limits(self) -> tuple[float, float] | None:
        """The clip range of the ratio; None if the surrogate does not clip."""
        if self.settings.get("surrogate", "clip") != "clip":
            return None
        return 1 - self.settings["clip_low"], 1 + self.settings["clip_high"]

    @property
    def inputs(self) -> dict[str, Any]:
        return {
            "logp_L": self.logp_L,
            "old_logp_L": self.old_L,
            "advantages_L": self.advantages_L,
            "ref_logp_L": self.ref_L,
            "denominator": self.row["denominator"] or 1.0,
            **self.settings,
            "surrogate": load_surrogate(self.settings.get("surrogate", "clip")),
        }


def lens(run: Run, step: int, group: int, sample: int, recomputed: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The group's tokens with the values they can be coloured by; of long completions, only the requested one.

    A value that was not recorded is None. `recomputed`: rows for a group whose tokens were not recorded.
    """
    recorded = _rows(run, step, group)
    rows = recorded or recomputed
    traced = _traced(rows, run, sample)
    if sum(len(_sequence(row)[0]) for row in rows) > MOST_TOKENS_AT_ONCE:
        rows = [traced.row]
    return {
        "settings": traced.settings,
        "updates": _updates(run),
        "kl_in": run.config.get("loss", {}).get("kl_in", "loss"),
        "left_out": left_out(run.config.get("loss", {})),
        "recomputed": not recorded,
        "rows": [_row(run, Traced(row, run.config.get("loss", {})), bool(recorded)) for row in rows],
    }


def _rows(run: Run, step: int, group: int) -> Sequence[Mapping[str, Any]]:
    return [row for row in run.token_arrays(step) if row["group_index"] == group]


def _row(run: Run, traced: Traced, recorded: bool) -> dict[str, Any]:
    terms = token_terms(**traced.inputs)
    entropies = traced.row["entropies"]
    written, read = _pieces(run, traced.row)
    # A checkpoint has no old policy and no sampler: recomputed tokens have neither ratio, clip nor gap.
    moved = traced.updated and recorded
    # Nor advantages that differ by token, and without these no push.
    unknown = not recorded and traced.row["advantages"] is None
    return {
        "sample": traced.row["sample_index"],
        "pieces": written,
        "observed": read,
        "updated": traced.updated,
        "denominator": traced.row["denominator"],
        "logprobs": {
            "updated": traced.logp_L.tolist(),
            "old": traced.old_L.tolist(),
            "sampler": traced.sampler_L.tolist(),
            "reference": None if traced.ref_L is None else traced.ref_L.tolist(),
        },
        "values": {
            "push": terms.push.tolist() if traced.updated and not unknown else None,
            "advantage": None if unknown else traced.advantages_L.tolist(),
            "ratio": terms.ratio.tolist() if moved else None,
            "clip": terms.clip.tolist() if moved and traced.limits else None,
            "kl": None if terms.kl is None or not traced.updated else terms.kl.tolist(),
            "entropy": None if entropies is None else entropies.tolist(),
            "gap": (traced.old_L - traced.sampler_L).tolist() if moved else None,
            "probability": traced.sampler_L.exp().tolist(),
        },
    }


def worked(
    run: Run, step: int, group: int, sample: int, position: int, recomputed: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The calculation of one token's loss."""
    traced = _traced(_rows(run, step, group) or recomputed, run, sample)
    return work_out(traced, position, _pieces(run, traced.row)[0], run.config.get("loss", {}))


def work_out(traced: Traced, position: int, texts: Sequence[str], loss: Mapping[str, Any]) -> dict[str, Any]:
    """The calculation of one token's loss, by the functions of `grpo.core`; `texts` are the tokens' texts."""
    length = len(traced.logp_L)
    if not 0 <= position < length:
        raise GrpoError(f"token {position} does not exist; the completion has {length} tokens")
    if not traced.updated:
        raise GrpoError("no update was taken on this completion: it was unscored or masked, or its advantage is 0")
    if traced.row["advantages"] is None:
        raise GrpoError("no loss: this run's advantages differ by token, and the record has only their mean")
    terms, settings, inputs = token_terms(**traced.inputs), traced.settings, traced.inputs
    ref = traced.ref_L
    weight = 1 / length if settings["aggregate"] == "sequence" else 1.0
    advantage, ratio = float(traced.advantages_L[position]), float(terms.ratio[position])
    limits, surrogate = traced.limits, settings.get("surrogate", "clip")
    return {
        "position": position,
        "length": length,
        "piece": texts[position],
        "logp": float(traced.logp_L[position]),
        "old": float(traced.old_L[position]),
        "sampler": float(traced.sampler_L[position]),
        "reference": None if ref is None else float(ref[position]),
        "ratio": ratio,
        "ratio_kind": settings["ratio"],
        "advantage": advantage,
        "surrogate_kind": surrogate,
        "limits": limits,
        "clipped_ratio": min(max(ratio, limits[0]), limits[1]) if limits else None,
        "cap": settings.get("cap", 0.0) if surrogate in ("clip", "weight") else 0.0,
        "gate": settings["gate_up" if advantage > 0 else "gate_down"] if surrogate == "gate" else None,
        "clip": int(terms.clip[position]) if limits else None,
        "kl": None if terms.kl is None else float(terms.kl[position]),
        "kl_kind": settings["kl"],
        "kl_in": loss.get("kl_in", "loss"),
        "beta": settings["beta"],
        "aggregate": settings["aggregate"],
        "weight": weight,
        "surrogate": token_loss(position, **{**inputs, "beta": 0.0}) * inputs["denominator"] / weight,
        "denominator": inputs["denominator"],
        "share": token_loss(position, **inputs),
        "push": float(terms.push[position]),
        "entropy": None if traced.row["entropies"] is None else float(traced.row["entropies"][position]),
        "left_out": left_out(loss),
    }


def _traced(rows: Sequence[Mapping[str, Any]], run: Run, sample: int) -> Traced:
    for row in rows:
        if row["sample_index"] == sample:
            return Traced(row, run.config.get("loss", {}))
    raise GrpoError("these tokens were not recorded; --system.token_groups N keeps those of N groups per step")


def _updates(run: Run) -> int:
    optimizer = run.config.get("optimizer", {})
    return int(optimizer.get("epochs", 1)) * int(optimizer.get("minibatches", 1))


def _sequence(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that a completion sampled and read, in order, and which of them it sampled."""
    sampled = np.ones(len(row["tokens"]), dtype=bool)
    if row["observed"] is None:
        return row["tokens"], sampled
    after = row["observed_after"]
    return np.insert(row["tokens"], after, row["observed"]), np.insert(sampled, after, False)


def _pieces(run: Run, row: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """(text of each sampled token; text of each token that was read, and how many sampled tokens precede it)"""
    tokens, sampled = _sequence(row)
    texts = pieces(run, tokens.tolist())
    written = [text for text, own in zip(texts, sampled, strict=True) if own]
    read = [
        {"after": int(after), "piece": text}
        for text, own, after in zip(texts, sampled, sampled.cumsum(), strict=True)
        if not own
    ]
    return written, read


def pieces(run: Run, tokens: Sequence[int]) -> list[str]:
    """The text of each token; its id if no tokenizer is on this machine."""
    file = _tokenizer_file(run)
    if file is None:
        return [f"‹{token}›" for token in tokens]
    tokenizer = _tokenizer(file)
    stream = DecodeStream(skip_special_tokens=False)
    # A character of several tokens appears with the last of them; the earlier ones are empty.
    return [stream.step(tokenizer, token) or "" for token in tokens]


def _tokenizer_file(run: Run) -> str | None:
    model = str(run.config.get("model", ""))
    newest = Checkpoints(run.path).newest()
    try:
        folders = [*([Path(newest.model)] if newest else []), Path(locate_model(model))]
    except GrpoError:  # the model was moved
        folders = [Path(newest.model)] if newest else []
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            return str(folder / "tokenizer.json")
    return _cached(model)


def _cached(model: str) -> str | None:
    """The local folder of a downloaded hub model; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "tokenizer.json")
    except HFValidationError:
        return None
    return found if isinstance(found, str) else None


@lru_cache(maxsize=4)
def _tokenizer(file: str) -> Tokenizer:
    return Tokenizer.from_file(file)
