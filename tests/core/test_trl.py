"""Agreement with TRL's loss code, an independent implementation, where both define the same thing."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from grpo.config.presets import PRESETS, load_surrogate
from grpo.core import denominator, group_advantages, parts_advantages, policy_loss, sampler_correction
from helpers.examples import EXAMPLES

pytest.importorskip("trl")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from trl.trainer.grpo_trainer import GRPOTrainer

MAX_NEW_TOKENS = 9


def random_batch(seed: int) -> dict[str, torch.Tensor]:
    """Eight completions of 1 to 9 tokens, two of them from a group without signal."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, MAX_NEW_TOKENS + 1, (8,), generator=generator)
    logp = -normal(8, MAX_NEW_TOKENS).abs() - 0.05
    advantages = normal(8)
    advantages[:2] = 0.0
    return {
        "logp": logp,
        "old": logp + 0.3 * normal(8, MAX_NEW_TOKENS),
        "ref": logp + 0.5 * normal(8, MAX_NEW_TOKENS),
        "sampler": logp + 0.5 * normal(8, MAX_NEW_TOKENS),
        "entropy": normal(8, MAX_NEW_TOKENS).abs(),
        "advantages": advantages,
        "mask": torch.arange(MAX_NEW_TOKENS) < lengths[:, None],
        "lengths": lengths,
    }


def trl_loss(batch: dict[str, torch.Tensor], loss_type: str, **options: object) -> tuple[float, torch.Tensor]:
    """GRPOTrainer._compute_loss on these log-probabilities, and the gradient by them."""
    logp = batch["logp"].clone().requires_grad_()
    entropy = batch["entropy"]
    settings = {
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "importance_sampling_level": "token",
        "correction": None,
        "delta": None,
        "bias": False,
        "entropy_coef": 0.0,
        **options,
    }
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=settings["importance_sampling_level"],
        beta=settings["beta"],
        loss_type=loss_type,
        epsilon_low=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        use_vllm=settings["correction"] is not None,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_NEW_TOKENS,
        _entropy_bonus_enabled=settings["entropy_coef"] != 0,
        entropy_coef=settings["entropy_coef"],
        use_adaptive_entropy=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        args=SimpleNamespace(
            steps_per_generation=1,
            use_bias_correction_kl=settings["bias"],
            delta=settings["delta"],
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            **{"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0},
        ),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    mask = batch["mask"].long()
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch["advantages"],
        "old_per_token_logps": batch["old"],
        "ref_per_token_logps": batch["ref"],
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": settings["correction"],
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad


def our_loss(batch: dict[str, torch.Tensor], preset: str, **changes: object) -> tuple[float, torch.Tensor]:
    settings = PRESETS[preset].settings
    options = {
        name: getattr(settings, name)
        for name in ("ratio", "surrogate", "clip_low", "clip_high", "cap", "gate_up", "gate_down", "aggregate", "kl")
    }
    if preset == "sapo":
        # TRL keeps this one in float32, so its 1.05 is 1.0499999523.
        options["gate_down"] = torch.tensor(settings.gate_down, dtype=torch.float32).item()
    logp = batch["logp"].clone().requires_grad_()
    options |= changes
    loss, _ = policy_loss(
        logp,
        batch["old"],
        batch["advantages"],
        batch["mask"],
        denominator=denominator(batch["lengths"], options["aggregate"], MAX_NEW_TOKENS),
        ref_logp=batch["ref"],
        entropy=batch["entropy"],
        sampler_logp=batch["sampler"],
        **options,
    )
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad


def assert_agree(theirs: tuple[float, torch.Tensor], ours: tuple[float, torch.Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-15)


TYPES = {
    "grpo": ("grpo", {}),
    "dr_grpo": ("dr_grpo", {}),
    "dapo": ("dapo", {"epsilon_high": 0.28}),
    "gspo": ("grpo", {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    "cispo": ("cispo", {"epsilon_high": 5.0}),
    "sapo": ("sapo", {}),
}


@pytest.mark.parametrize("preset", TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_loss_and_gradient_are_those_of_trl(preset: str, beta: float) -> None:
    loss_type, options = TYPES[preset]
    for seed in range(20):
        batch = random_batch(seed)
        assert_agree(trl_loss(batch, loss_type, beta=beta, **options), our_loss(batch, preset, beta=beta))


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_the_example_of_a_surrogate_is_trls_vespo(beta: float) -> None:
    gamma = load_surrogate(f"{EXAMPLES}/vespo.py:gamma")
    for seed in range(20):
        batch = random_batch(seed)
        batch["old"][0] = batch["logp"][0] + 30  # a completion that has become impossible, and one that was
        batch["old"][1] = batch["logp"][1] - 30
        batch["advantages"][:2] = torch.tensor([1.0, -1.0], dtype=torch.float64)
        ours = our_loss(batch, "dapo", beta=beta, ratio="product", surrogate=gamma)
        assert_agree(trl_loss(batch, "vespo", beta=beta), ours)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_sequence_ratios_of_which_each_token_counts_are_trls_luspo(beta: float) -> None:
    """Divided by max_new_tokens, as the loss of dr_grpo is."""
    options = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    for seed in range(20):
        batch = random_batch(seed)
        loss, gradient = trl_loss(batch, "luspo", beta=beta, **options)
        ours = our_loss(batch, "gspo", beta=beta, aggregate="constant")
        assert_agree((loss / MAX_NEW_TOKENS, gradient / MAX_NEW_TOKENS), ours)


@pytest.mark.parametrize("preset", ["grpo", "gspo"])
def test_the_kl_times_the_ratio_is_trls_default(preset: str) -> None:
    loss_type, options = TYPES[preset]
    batch = random_batch(1)
    theirs = trl_loss(batch, loss_type, beta=0.3, bias=True, **options)
    assert_agree(theirs, our_loss(batch, preset, beta=0.3, kl="k3_ratio"))
    assert our_loss(batch, preset, beta=0.3)[0] != pytest.approx(theirs[0], rel=1e-3)


def test_the_cap_on_negative_advantages_is_trls_delta() -> None:
    for seed in range(10):
        batch = random_batch(seed)
        assert_agree(trl_loss(batch, "dapo", delta=1.5), our_loss(batch, "dapo", clip_high=0.2, cap=1.5))


@pytest.mark.parametrize("kind", ["token", "token_mask", "sequence", "sequence_mask"])
def test_importance_weights_enter_as_trls_do(kind: str) -> None:
    """TRL's weights, written out from the formula in its documentation; where they enter is TRL's own code."""
    batch = random_batch(2)
    difference = (batch["old"] - batch["sampler"]).masked_fill(~batch["mask"], 0.0)
    raw = (difference.sum(1, keepdim=True) if kind.startswith("sequence") else difference).exp()
    expected = raw.masked_fill(raw > 1.5, 0.0) if kind.endswith("mask") else raw.clamp(max=1.5)
    weights, limited = sampler_correction(batch["old"], batch["sampler"], batch["mask"], kind, 1.5)
    torch.testing.assert_close(weights, expected.expand_as(weights), rtol=1e-12, atol=0)
    assert limited[batch["mask"]].any()
    theirs = trl_loss(batch, "dapo", beta=0.3, correction=expected)
    ours = our_loss(batch, "dapo", clip_high=0.2, beta=0.3, correction=kind, correction_cap=1.5)
    assert_agree(theirs, ours)


def test_the_entropy_bonus_is_trls_where_tokens_weigh_the_same() -> None:
    """TRL averages entropy over tokens whatever the loss type; here it is aggregated as the rest of the loss is."""
    batch = random_batch(3)
    for entropy_coef in (0.0, 0.2):
        assert_agree(
            trl_loss(batch, "dapo", entropy_coef=entropy_coef),
            our_loss(batch, "dapo", clip_high=0.2, entropy_weight=entropy_coef),
        )


def test_at_ratio_one_trls_default_cispo_has_a_fifth_of_the_gradient() -> None:
    """Its epsilon_high, 0.2 by default, is the cap itself; ours has no default below 1."""
    batch = random_batch(4) | {"old": random_batch(4)["logp"]}
    _, theirs = trl_loss(batch, "cispo")
    _, ours = our_loss(batch, "cispo")
    torch.testing.assert_close(theirs, 0.2 * ours, rtol=1e-12, atol=0)


def test_several_rewards_normalised_first_are_trls() -> None:
    """The two lines of TRL that compute it, on rewards that all apply (they are not a function that can be called)."""
    parts = torch.rand(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor([1.0, 0.2, 3.0], dtype=torch.float64)
    each = (parts - parts.mean(dim=1, keepdim=True)) / (parts.std(dim=1, keepdim=True) + 1e-4)
    summed = (each * weights).sum(dim=2)
    expected = (summed - summed.mean()) / (summed.std() + 1e-4)
    torch.testing.assert_close(parts_advantages(parts, weights), expected, rtol=1e-9, atol=1e-12)
    each = (parts - parts.mean(dim=1, keepdim=True)) / (parts.std(dim=1, keepdim=True, correction=0) + 0.1)
    summed = (each * weights).sum(dim=2)
    population = parts_advantages(parts, weights, std="population", std_eps=0.1)
    torch.testing.assert_close(population, summed / (summed.std(correction=0) + 0.1), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(group_advantages((parts * weights).sum(dim=2)), expected, atol=0.1)
