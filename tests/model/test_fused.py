"""Training's fused blocks: every kernel against float64, and the whole model's gradients against the stock model's.

Without a GPU the kernels run through Triton's interpreter and attention in plain arithmetic.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from grpo.config import Lora, Optimizer
from grpo.distributed.world import World
from grpo.model.load import load_policy
from grpo.model.lora import freeze
from grpo.model.matmul import matmul
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.packing import pack
from grpo.model.policy import Policy, logprobs
from grpo.training.preflight import model_assumptions
from helpers.groups import random_episodes, random_groups
from helpers.policies import random_policy

pytest.importorskip("triton")

from grpo.model.fused import kernels, segments
from grpo.model.fused.attention import attend, attend_backward
from grpo.model.fused.block import PassState, _Block, add_rows
from grpo.model.fused.head import token_logprobs
from grpo.model.fused.weights import Linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies no bfloat16 matrices.
DTYPES = [(torch.float32, 3e-6), (torch.bfloat16 if DEVICE == "cuda" else torch.float16, 1e-2)]
FUSED = ["llama", "qwen2", "qwen3", "mistral"]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in the norm; NaN counts as wrong."""
    found, expected = (x.detach().double().cpu() for x in (found, expected))
    gap = (found - expected).norm() / expected.norm()
    return float(gap) if torch.isfinite(gap) else float("inf")


def exact(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_norm(dtype: torch.dtype, bound: float) -> None:
    x, weight, grad, already = (
        random(5, 37),
        random(37, seed=1),
        random(5, 37, dtype=dtype, seed=2),
        random(5, 37, seed=3),
    )
    wide_x, wide_weight = exact(x, weight)
    expected = wide_x / (wide_x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * wide_weight
    expected.backward(grad.double())
    found, scale = kernels.norm(x, weight, 1e-5, dtype)
    assert found.dtype == dtype
    assert error(found, expected) < bound
    total = already.clone()
    narrow, again, weight_grad = kernels.norm_backward(grad, x, scale, weight, total)
    assert torch.equal(again, found)
    assert error(total, already.double() + wide_x.grad) < 3e-6
    assert error(narrow, already.double() + wide_x.grad) < bound
    assert error(weight_grad, wide_weight.grad) < 3e-6


def test_few_programs_accumulate_the_norm_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    test_norm(torch.float32, 3e-6)


def test_norm_of_heads() -> None:
    heads, D = 3, 6
    x, weight, grad = random(4, 5 * D), random(D, seed=1), random(4, 5 * D, seed=2)
    wide_x, wide_weight = exact(x, weight)
    parts = wide_x[:, : heads * D].unflatten(1, (heads, D))
    expected = parts / (parts.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * wide_weight
    expected.flatten(1).backward(grad[:, : heads * D].double())
    found, of_x = x.clone(), grad.clone()
    scale = kernels.norm_heads(found, weight, 1e-5, heads, found)
    assert error(found[:, : heads * D], expected.flatten(1)) < 3e-6
    assert torch.equal(found[:, heads * D :], x[:, heads * D :])
    weight_grad = kernels.norm_heads_backward(of_x, x, scale, weight, heads)
    assert error(of_x[:, : heads * D], wide_x.grad[:, : heads * D]) < 3e-6
    assert torch.equal(of_x[:, heads * D :], grad[:, heads * D :])
    assert error(weight_grad, wide_weight.grad) < 3e-6


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_gate(dtype: torch.dtype, bound: float) -> None:
    both, grad = random(3, 2 * 1100, dtype=dtype), random(3, 1100, dtype=dtype, seed=1)
    [wide] = exact(both)
    gate, up = wide.chunk(2, dim=1)
    expected = gate * torch.sigmoid(gate) * up
    expected.backward(grad.double())
    assert error(kernels.gated(both), expected) < bound
    found, again = kernels.gate_backward(grad, both)
    assert error(found, wide.grad) < bound
    assert error(again, expected) < bound


def turned(x_THD: torch.Tensor, angle_TD: torch.Tensor) -> torch.Tensor:
    low, high = x_THD.chunk(2, dim=-1)
    cos, sin = angle_TD.cos()[:, None], angle_TD.sin()[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


@pytest.mark.parametrize("prompt_tokens", [None, 2])
def test_rotation(prompt_tokens: int | None) -> None:
    T, H, K, D = 5, 3, 1, 12
    qkv, positions = random(T, (H + 2 * K) * D), torch.tensor([0, 1, 1, 2, 6], device=DEVICE)
    bias = random((H + 2 * K) * D, seed=9)
    angles = random(7, D // 2, seed=1)
    rotation = angles.cos(), angles.sin()
    [wide] = exact(qkv)
    q, k, v = (wide + bias.double()).view(T, H + 2 * K, D).split([H, K, K], dim=1)
    q, k = (turned(x, angles.double()[positions]) for x in (q, k))
    found = kernels.rotate(qkv, bias, rotation, positions, H, K, torch.float32)
    assert error(found, torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)) < 3e-6
    narrow = kernels.rotate(qkv - bias, bias, rotation, positions, H, K, torch.float16)
    assert narrow.dtype == torch.float16
    without = kernels.rotate(qkv, None, rotation, positions, H, K, torch.float32)
    assert error(narrow, without) < 1e-3
    own = [random(T, heads, D, seed=2 + i) for i, heads in enumerate((H, K, K))]
    whole, more = [x.double().clone() for x in own], None
    if prompt_tokens is not None:
        more = (random(T - 2, H, D, seed=5), random(2, K, D, seed=6), random(2, K, D, seed=7))
        whole[0][2:] += more[0].double()
        whole[1][:2] += more[1].double()
        whole[2][:2] += more[2].double()
    torch.autograd.backward([q, k, v], whole)
    assert error(kernels.rotate_back(tuple(own), more, rotation, positions), wide.grad) < 3e-6


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs(temperature: float) -> None:
    R, V = 4, 5000
    logits, target = 4 * random(R, V), torch.tensor([0, 4999, 17, 4096], device=DEVICE)
    logits[3, 100] = -torch.inf
    [wide] = exact(logits)
    logp = torch.log_softmax(wide / temperature, dim=-1)
    expected = logp.gather(1, target[:, None])[:, 0]
    entropy = -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)
    grads = random(R, seed=1), random(R, seed=2)
    torch.autograd.backward([expected, entropy], [grad.double() for grad in grads])
    found_logp, found_entropy, lse = kernels.token_logprobs(logits, target, temperature)
    assert error(found_logp, expected) < 1e-5
    assert error(found_entropy, entropy) < 1e-5
    found = torch.empty_like(logits)
    kernels.token_logprobs_backward(logits, target, lse, found_entropy, *grads, temperature, found)
    assert error(found, wide.grad.nan_to_num(0.0)) < 1e-5


@pytest.mark.parametrize("keep_gradient", [False, True])
def test_the_output_layer_by_hand(keep_gradient: bool) -> None:
    """Two tokens at weights 1 and 0, hidden states 0: probabilities ½. A sum's gradient is 1 for all: of the states
    1 − ½ and 0 − ½, of weights times 0."""
    hidden = torch.zeros(2, 1, device=DEVICE, requires_grad=True)
    weight = torch.nn.Parameter(torch.tensor([[1.0], [0.0]], device=DEVICE))
    target = torch.tensor([0, 1], device=DEVICE)
    logp, entropy = token_logprobs(hidden, weight.detach(), weight, target, 1.0, keep_gradient=keep_gradient)
    np.testing.assert_allclose(logp.tolist() + entropy.tolist(), np.log([0.5, 0.5, 2, 2]), rtol=1e-6)
    logp.sum().backward()
    assert hidden.grad.tolist() == [[0.5], [-0.5]]
    assert weight.grad.tolist() == [[0.0], [0.0]]


@dataclass
class OutputLayer:
    """17 tokens in chunks of 7, rounded to `dtype`, and the gradient of each log-probability in the loss."""

    dtype: torch.dtype
    trainable: bool = True
    earlier: torch.Tensor | None = None
    """The weight's gradient of an earlier micro-batch."""
    temperature: float = 0.7

    def __post_init__(self) -> None:
        self.hidden = random(17, 12, dtype=self.dtype).requires_grad_()
        self.head = random(50, 12, dtype=self.dtype, seed=1)
        self.weight = torch.nn.Parameter(self.head.float(), requires_grad=self.trainable)
        self.weight.grad = None if self.earlier is None else self.earlier.clone()
        self.target = torch.arange(17, device=DEVICE) * 3 % 50
        self.loss_grad = random(17, seed=2)

    def run(self, *, keep_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(
            self.hidden, self.head, self.weight, self.target, self.temperature, keep_gradient=keep_gradient
        )

    def exact(self) -> tuple[torch.Tensor, ...]:
        """(log-probabilities, entropies, gradient of the hidden states, of the weight) in float64."""
        hidden, head = exact(self.hidden, self.head)
        logp_AV = torch.log_softmax(hidden @ head.t() / self.temperature, dim=-1)
        logp = logp_AV.gather(1, self.target[:, None])[:, 0]
        logp.backward(self.loss_grad.double())
        return logp, -(logp_AV.exp() * logp_AV).sum(-1), hidden.grad, head.grad


@pytest.fixture
def chunks_of_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.model.fused.head.rows_at_once", lambda vocabulary: 7)


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
@pytest.mark.parametrize("keep_gradient", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.usefixtures("chunks_of_seven")
def test_gradients_of_the_output_layer(dtype: torch.dtype, bound: float, keep_gradient: bool, earlier: bool) -> None:
    """Of the first micro-batch and of a later one, with the gradient kept and with the logits computed again."""
    before = random(50, 12, seed=3) if earlier else None
    layer = OutputLayer(dtype, earlier=before)
    logp, entropy, hidden_grad, weight_grad = layer.exact()
    found_logp, found_entropy = layer.run(keep_gradient=keep_gradient)
    found_logp.backward(layer.loss_grad)
    assert error(found_logp, logp) < bound
    assert error(found_entropy, entropy) < bound
    assert error(layer.hidden.grad, hidden_grad) < bound
    assert layer.weight.grad.dtype == torch.float32
    assert error(layer.weight.grad, weight_grad if before is None else before.double() + weight_grad) < bound


@pytest.fixture
def matmuls_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and results in float32, of numbers in 16 bits."""

    def matmul_of_a_gpu(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
        return matmul(a.float(), b.float(), **options)

    for module in ("head", "weights"):
        monkeypatch.setattr(f"grpo.model.fused.{module}.matmul", matmul_of_a_gpu)


@pytest.mark.parametrize("keep_gradient", [False, True])
@pytest.mark.usefixtures("chunks_of_seven", "matmuls_of_a_gpu")
def test_large_gradients_do_not_overflow(keep_gradient: bool) -> None:
    """A few short completions among long ones: 3,000 times a token's usual gradient. Hidden states of 50 times that do
    not fit float16, whose largest number is 65,504."""
    layer = OutputLayer(torch.float16)
    layer.hidden.data *= 50 / layer.hidden.abs().max()
    layer.head /= 50
    layer.loss_grad *= 3000 / layer.loss_grad.abs().max()
    *_, hidden_grad, weight_grad = layer.exact()
    layer.run(keep_gradient=keep_gradient)[0].backward(layer.loss_grad)
    assert error(layer.hidden.grad, hidden_grad) < 2e-3
    assert error(layer.weight.grad, weight_grad) < 2e-3


@pytest.mark.usefixtures("matmuls_of_a_gpu")
def test_small_probabilities_are_kept() -> None:
    """Tokens of probability 1e-7 and 1e-6: float16 has steps of 6e-8 there, and without a scale keeps 1.2e-7 for the
    first."""
    layer = OutputLayer(torch.float16, temperature=1.0)
    layer.hidden.data.fill_(1.0)
    layer.head.zero_()
    layer.head[:, 0] = torch.tensor([0.0, *np.linspace(np.log(1e-7), np.log(1e-6), 49)])
    layer.target.zero_()
    weight_grad = layer.exact()[3]
    layer.run(keep_gradient=True)[0].backward(layer.loss_grad)
    torch.testing.assert_close(layer.weight.grad[1:].double(), weight_grad[1:], rtol=0.01, atol=0)


@pytest.mark.parametrize("keep_gradient", [False, True])
@pytest.mark.usefixtures("chunks_of_seven")
def test_a_frozen_output_layer_passes_the_gradient_on(keep_gradient: bool) -> None:
    layer = OutputLayer(torch.float32, trainable=False)
    layer.run(keep_gradient=keep_gradient)[0].backward(layer.loss_grad)
    assert error(layer.hidden.grad, layer.exact()[2]) < 3e-6
    assert layer.weight.grad is None


@pytest.mark.usefixtures("chunks_of_seven")
def test_a_kept_gradient_spares_the_second_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 7, 7 and 3 tokens: logits of each once instead of twice, and one matmul for each of the two gradients.
    Values are the same; only with recomputed logits has the entropy a gradient."""
    rows: list[tuple[int, ...]] = []

    def count(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
        rows.append(tuple(a.shape))
        return matmul(a, b, **options)

    monkeypatch.setattr("grpo.model.fused.head.matmul", count)
    values, logits, weights = [], [(7, 12), (7, 12), (3, 12)], [(50, 7), (50, 7), (50, 3)]
    again = [shape for pair in zip(logits, weights, strict=True) for shape in pair]
    for keep_gradient, backward in ((True, [(17, 50), (50, 17)]), (False, again)):
        layer = OutputLayer(torch.float32)
        logp, entropy = layer.run(keep_gradient=keep_gradient)
        assert (logp.requires_grad, entropy.requires_grad) == (True, not keep_gradient)
        assert rows == logits
        rows.clear()
        logp.sum().backward()
        assert rows == backward
        rows.clear()
        values.append((logp, entropy))
    assert all(torch.equal(kept, recomputed) for kept, recomputed in zip(*values, strict=True))


@pytest.mark.usefixtures("chunks_of_seven")
def test_what_the_output_layer_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One gradient of 17 × 50 logits, in the precision of computation; without a backward pass none is computed."""
    dtype = DTYPES[1][0]

    def saved(*, keep_gradient: bool) -> list[tuple[Any, ...]]:
        tensors: list[torch.Tensor] = []
        layer = OutputLayer(dtype)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: tensors.append(x) or x, lambda x: x):
            layer.run(keep_gradient=keep_gradient)
        return [(*x.shape, x.dtype) for x in tensors if x.numel() >= 17 * 50]

    assert saved(keep_gradient=True) == [(17, 50, dtype)]
    assert saved(keep_gradient=False) == []
    monkeypatch.setattr(kernels, "token_logprobs_backward", None)
    with torch.no_grad():
        assert saved(keep_gradient=True) == []


@pytest.mark.parametrize("queries", [1024, 2])
@pytest.mark.parametrize("shape", [(2, 2), (4, 1)])
def test_attention_of_a_group_is_that_of_its_sequences_one_by_one(
    shape: tuple[int, int], queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float64 over each prompt + completion by itself; prompts' gradients are sums over their completions. In
    parts of a group's queries or whole."""
    monkeypatch.setattr(segments, "QUERIES_PER_PART", queries)
    (H, K), D, scale = shape, 8 if DEVICE == "cpu" else 64, 0.3
    dtype, bound = (torch.float32, 3e-6) if DEVICE == "cpu" else (torch.bfloat16, 2e-2)
    [batch] = pack(random_groups(), 10_000, DEVICE)
    layout, T = batch.layout, len(batch.tokens_T)
    assert (layout.segments.parts is None) == (queries == 1024)
    qkv, grad = random(T, (H + 2 * K) * D, dtype=dtype), random(T, H, D, dtype=dtype, seed=1)
    [wide] = exact(qkv)
    q, k, v = wide.view(T, H + 2 * K, D).split([H, K, K], dim=1)
    expected = torch.zeros(T, H, D, dtype=torch.float64, device=DEVICE)

    def see(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        wide_k, wide_v = (x[keys].repeat_interleave(H // K, 1) for x in (k, v))
        score = torch.einsum("lhd,shd->hls", q[queries], wide_k) * scale
        before = torch.arange(len(keys), device=DEVICE) <= torch.arange(len(queries), device=DEVICE)[:, None] + (
            len(keys) - len(queries)
        )
        return torch.einsum("hls,shd->lhd", score.masked_fill(~before, -torch.inf).softmax(-1), wide_v)

    prompts = [places[:n] for places, n in zip(layout.prompt_places_PQ, layout.prompt_lengths_P, strict=True)]
    pieces = [(prompt, see(prompt, prompt)) for prompt in prompts]
    for places, prompt in zip(layout.places_NE, layout.prompt_of_N, strict=True):
        own = places[places > 0]
        pieces.append((own, see(own, torch.cat([prompts[prompt], own]))))
    for places, mixed in pieces:
        expected = expected.index_put((places,), mixed)
    expected.backward(grad.double())
    out, lse = attend(qkv, layout.segments, H, K, scale)
    assert error(out, expected) < bound
    own, more = attend_backward(grad, qkv, out, lse, layout.segments, H, K, scale)
    still = torch.ones(1, D // 2, device=DEVICE), torch.zeros(1, D // 2, device=DEVICE)
    found = kernels.rotate_back(own, more, still, torch.zeros(T, dtype=torch.int64, device=DEVICE))
    assert error(found, wide.grad) < bound


def test_parts_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2 and 3 tokens; their 5 and 4 queries in two parts, each with a copy of the prompt."""
    monkeypatch.setattr(segments, "QUERIES_PER_PART", 2)
    parts = segments.Parts.of(np.array([2, 3]), np.array([5, 4]), DEVICE)
    assert parts.bounds.queries.tolist() == [0, 2, 5, 7, 9]
    assert parts.bounds.keys.tolist() == [0, 2, 4, 7, 10]
    assert (parts.bounds.longest_queries, parts.bounds.longest_keys) == (3, 3)
    assert parts.source_U.tolist() == [0, 1, 0, 1, 2, 3, 4, 2, 3, 4]
    assert parts.places_SQ.tolist() == [[0, 1, 4, 5, 6], [2, 3, 7, 8, 9]]
    grads = torch.arange(10.0, device=DEVICE)[:, None, None]
    assert parts.summed(grads).flatten().tolist() == [2, 4, 11, 13, 15]
    assert segments.Parts.of(np.array([2, 3]), np.array([8, 1]), DEVICE) is None, "a part would be empty"
    assert segments.Parts.of(np.full(17, 2), np.full(17, 999), DEVICE) is None, "17 prompts have programs enough"
    assert segments.Parts.of(np.array([2049]), np.array([999]), DEVICE) is None, "so has one prompt of 17 times 128"


def loss_and_gradients(
    policy: Policy, budget: int, *, train_entropy: bool = True
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A loss with a part for every token's log-probability and, if it is trained, entropy, over micro-batches."""
    losses = []
    # With observations in between; few of them for the interpreter, which is slow.
    groups = random_episodes(groups=2, group_size=3) if DEVICE == "cpu" else random_episodes()
    for batch in pack(groups, budget, policy.device):
        logp_NL, entropy_NL = logprobs(policy, batch, 0.8, train_entropy=train_entropy)
        bonus = 0.3 * (entropy_NL * batch.mask_NL).sum()
        losses.append((batch.advantages_NL * logp_NL).sum() + (bonus if train_entropy else bonus.detach()))
        losses[-1].backward()
    return torch.stack(losses).sum().detach(), {n: w.grad for n, w in policy.model.named_parameters()}


@pytest.fixture
def trains_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused on a CPU too, in float32."""
    monkeypatch.setattr(Policy, "fused_for", lambda self, layout: self.fused)


@pytest.mark.parametrize(
    ("name", "checkpointing", "train_entropy"),
    [*((name, False, True) for name in FUSED), ("qwen3", True, True), ("qwen2", False, False)],
)
@pytest.mark.usefixtures("trains_anywhere", "chunks_of_seven")
def test_gradients_equal_the_stock_models(
    name: str, checkpointing: bool, train_entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One micro-batch or several, with and without gradient checkpointing and an entropy bonus: the same gradient of
    every weight."""
    fused, stock = random_policy(name), random_policy(name)
    fused.model.to(DEVICE), stock.model.to(DEVICE)
    if DEVICE == "cuda":
        fused.compute = torch.bfloat16
    fused.gradient_checkpointing = checkpointing
    found_loss, found = loss_and_gradients(fused, 25, train_entropy=train_entropy)
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "fused_for", lambda self, layout: None)
        expected_loss, expected = loss_and_gradients(stock, 10_000, train_entropy=train_entropy)
    bound = 1e-5 if DEVICE == "cpu" else 0.05
    assert error(found_loss, expected_loss) < bound
    assert found.keys() == expected.keys()
    for weight, gradient in expected.items():
        assert found[weight].dtype == torch.float32
        assert error(found[weight], gradient) < bound, weight


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("train_entropy", [False, True])
@pytest.mark.usefixtures("trains_anywhere")
def test_when_the_gradient_of_the_logits_is_kept(checkpointing: bool, train_entropy: bool) -> None:
    """Without gradient checkpointing and an entropy bonus. The entropy then has no gradient."""
    policy = random_policy("llama")
    policy.model.to(DEVICE)
    if DEVICE == "cuda":
        policy.compute = torch.bfloat16
    policy.gradient_checkpointing = checkpointing
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000, DEVICE)
    logp_NL, entropy_NL = logprobs(policy, batch, 1.0, train_entropy=train_entropy)
    assert logp_NL.requires_grad
    assert entropy_NL.requires_grad == (checkpointing or train_entropy)


@pytest.mark.usefixtures("trains_anywhere")
def test_adapters_have_the_gradients_peft_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some maps adapted and some not; nothing else learns. Switched off, the model is what it was."""
    pytest.importorskip("peft")
    from grpo.model.lora import adapt, adapted_layers, switched_off

    policies = [random_policy("qwen2") for _ in range(2)]
    for policy in policies:
        policy.model.to(DEVICE)
        policy.name = "nano"  # where peft is told the base model is
        adapt(policy, Lora(rank=3, alpha=6.0, targets="q_proj, v_proj, gate_proj, down_proj"), seed=1)
        with torch.no_grad():
            torch.manual_seed(5)
            for layer in adapted_layers(policy.model):
                layer.lora_B["default"].weight.normal_(std=0.2)
    fused, stock = policies
    if DEVICE == "cuda":
        fused.compute = torch.bfloat16
    found_loss, found = loss_and_gradients(fused, 25)
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "fused_for", lambda self, layout: None)
        expected_loss, expected = loss_and_gradients(stock, 10_000)
    bound = 1e-5 if DEVICE == "cpu" else 0.05
    assert error(found_loss, expected_loss) < bound
    learning = {name for name, gradient in expected.items() if gradient is not None}
    assert learning == {name for name in expected if ".lora_" in name}
    assert learning == {name for name, gradient in found.items() if gradient is not None}
    for name in learning:
        assert error(found[name], expected[name]) < bound, name
    plain = random_policy("qwen2")
    plain.model.to(DEVICE)
    plain.compute = fused.compute
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000, DEVICE)
    with torch.no_grad(), switched_off(fused.model):
        torch.testing.assert_close(logprobs(fused, batch, 1.0), logprobs(plain, batch, 1.0), rtol=0, atol=0)


@pytest.mark.usefixtures("matmuls_of_a_gpu")
def test_queries_keys_and_values_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block keeps is at most half a last bit from the rotation of the unrounded matmul, with its bias."""
    policy, dtype = random_policy("qwen2"), DTYPES[1][0]
    policy.model.to(DEVICE)
    policy.compute = dtype
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000, DEVICE)
    segments, weights = batch.layout.segments, policy.fused
    assert segments is not None
    assert weights is not None
    weights.refresh()
    layer, rotation = weights.layers[0], weights.rotation(segments.positions)
    layer.qkv.bias += random(len(layer.qkv.bias), dtype=dtype)
    state = PassState(weights, batch.positions_T, segments, rotation, gradient_checkpointing=False)
    seen: list[torch.Tensor] = []

    def attention(qkv_TE: torch.Tensor, *_: Any) -> Any:
        seen.append(qkv_TE)
        return qkv_TE.new_zeros(len(qkv_TE), state.heads, qkv_TE.shape[1] // (state.heads + 2 * state.key_heads)), None

    monkeypatch.setattr("grpo.model.fused.block.attend", attention)
    x_TC = random(len(batch.tokens_T), layer.qkv.weight.shape[1])
    _Block.apply(x_TC, layer, state)
    norm = layer.attention_norm
    normal_TC, _ = kernels.norm(x_TC, norm.weight, norm.variance_epsilon, dtype)
    product = (normal_TC.double() @ layer.qkv.weight.double().t()).float()
    bias, heads = layer.qkv.bias, (state.heads, state.key_heads)
    exact = kernels.rotate(product, bias, rotation, batch.positions_T, *heads, torch.float32)
    [found] = seen
    assert found.dtype == dtype
    assert ((found - exact).abs() <= 0.501 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


@pytest.mark.usefixtures("trains_anywhere")
def test_the_working_copy_follows_the_weights() -> None:
    """After a step in place, and after the weights move elsewhere."""
    fused, stock = random_policy("llama"), random_policy("llama")
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000)

    def gap() -> float:
        with torch.no_grad():
            found, _ = logprobs(fused, batch, 1.0)
            hidden = stock.model.base_model(
                input_ids=batch.tokens_T[None],
                position_ids=batch.positions_T[None],
                use_cache=False,
                layout=batch.layout,
            ).last_hidden_state[0][batch.source_A]
            logp_AV = torch.log_softmax(stock.model.get_output_embeddings()(hidden), dim=-1)
            expected = logp_AV.gather(1, batch.target_A[:, None])[:, 0]
        return float((found[batch.mask_NL] - expected).abs().max())

    if DEVICE == "cuda":
        pytest.skip("compares float32 on a CPU")
    assert gap() < 1e-5
    for policy in (fused, stock):
        torch.manual_seed(5)
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    assert gap() < 1e-5
    for policy in (fused, stock):
        for weight in policy.model.parameters():
            weight.data = weight.data * 0.9
    assert gap() < 1e-5


def test_gradients_of_maps_side_by_side_add_up_and_are_let_go() -> None:
    """1 + 4 = 5 for the first input, 2 + 10 for the second; what is set to None is no longer in memory. A gradient that
    lies otherwise, as autograd may leave one, is added to as well."""
    maps = [torch.nn.Linear(2, rows, bias=False) for rows in (1, 2)]
    linear = Linear(maps, torch.float32)

    def learn(grad: float, x: list[float]) -> None:
        linear.accumulate_grad(torch.full((1, 3), grad), torch.tensor([x]))

    learn(1.0, [1.0, 2.0])
    learn(2.0, [2.0, 5.0])
    assert [one.weight.grad.tolist() for one in maps] == [[[5.0, 12.0]], [[5.0, 12.0], [5.0, 12.0]]]
    assert linear._gradient().tolist() == [[5.0, 12.0]] * 3
    held = weakref.ref(linear._gradient())
    for one in maps:
        one.weight.grad = None
    assert held() is None
    square = torch.nn.Linear(2, 2, bias=False)
    square.weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
    Linear([square], torch.float32).accumulate_grad(torch.tensor([[1.0, 0.0]]), torch.tensor([[10.0, 20.0]]))
    assert square.weight.grad.tolist() == [[11.0, 23.0], [2.0, 4.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_frequent_token_do_not_round_away(dtype: torch.dtype) -> None:
    """2 000 times 1/128 is 15.625; one by one, bfloat16 would stay at 2, whose last bit is 1/64."""
    table, tokens = torch.zeros(3, 2, dtype=dtype), torch.tensor([2] * 2000 + [0])
    add_rows(table, tokens, torch.full((2001, 2), 1 / 128).to(dtype))
    assert table.tolist() == [[1 / 128] * 2, [0.0] * 2, [15.625] * 2]


def test_the_working_copy_follows_the_optimizer() -> None:
    """Adam's first step moves every weight by the learning rate, whatever its gradient."""
    policy = random_policy("llama")
    policy.model.to(DEVICE)
    optimizer = make_optimizer(policy, Optimizer())
    weights = policy.fused
    before = weights.layers[0].qkv.weight.clone(), weights.head.clone()
    for weight in policy.model.parameters():
        weight.grad = torch.ones_like(weight)
    take_step(policy, optimizer, lr=0.1, grad_clip=1.0)
    weights.refresh()
    for copy, old in zip((weights.layers[0].qkv.weight, weights.head), before, strict=True):
        torch.testing.assert_close(copy, old - 0.1, rtol=0, atol=1e-4)


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_a_reference_that_is_refreshed_is_followed(compute: torch.dtype | None) -> None:
    """Frozen weights and biases are read where they are, linear layers in the precision they are computed in; a tied
    output layer that is wider than that has a copy, which follows too."""
    policy, reference = (replace(random_policy("qwen2", seed=seed), compute=compute) for seed in (1, 2))
    for held in (policy, reference):
        held.model.lm_head.weight = held.model.model.embed_tokens.weight
    freeze(reference)
    weights, layer = reference.fused, reference.model.model.layers[0].self_attn
    assert not any(weight.requires_grad for weight in reference.model.parameters())
    assert layer.q_proj.weight.dtype == (compute or torch.float32)
    assert reference.model.get_output_embeddings().weight.dtype == torch.float32
    for held in (reference, policy):  # and back to what it was, from a checkpoint
        saved = {name: tensor.clone() for name, tensor in held.model.state_dict().items()}
        reference.model.load_state_dict(saved)
        assert reference.fused is weights, "nothing has moved"
        weights.refresh()
        for part, kind in ((weights.layers[0].qkv.weight, "weight"), (weights.layers[0].qkv.bias, "bias")):
            names = [f"model.layers.0.self_attn.{name}_proj.{kind}" for name in "qkv"]
            assert torch.equal(part, torch.cat([saved[name] for name in names]).to(part.dtype))
        assert torch.equal(weights.head, saved["lm_head.weight"].to(weights.dtype))


@pytest.mark.parametrize("path", ["fused", "stock"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_weights_held_in_16_bits_have_the_same_gradients(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held weights are their own working copy; with float32 gradients, over several micro-batches, nothing changes."""
    monkeypatch.setattr(Policy, "fused_for", lambda self, layout: self.fused if path == "fused" else None)
    dtype = torch.bfloat16
    plain, held = (replace(random_policy(name), compute=dtype) for _ in range(2))
    plain.model.to(DEVICE), held.model.to(DEVICE)
    make_optimizer(held, Optimizer(), World(rank=0, size=2), "weights")
    narrow = {name for name, weight in held.model.named_parameters() if weight.dtype == dtype}
    assert narrow == {n for n, w in plain.model.named_parameters() if w.ndim == 2 and "embed_tokens" not in n}
    expected_loss, expected = loss_and_gradients(plain, 25)
    found_loss, found = loss_and_gradients(held, 25)
    assert torch.equal(found_loss, expected_loss)
    for weight, gradient in expected.items():
        assert found[weight].dtype == torch.float32
        # CUDA sums the gradients of an embedding's row in any order.
        same = torch.allclose if "embed_tokens" in weight and DEVICE == "cuda" else torch.equal
        assert same(found[weight], gradient), weight
    weights, attention = held.fused, held.model.model.layers[0].self_attn
    assert weights.layers[0].qkv.weight.data_ptr() == attention.q_proj.weight.data_ptr()
    assert weights.head.data_ptr() == held.model.lm_head.weight.data_ptr()
    with torch.no_grad():
        for weight in held.model.parameters():
            weight.mul_(2)
    assert torch.equal(weights.layers[0].qkv.weight[-1], attention.v_proj.weight[-1]), "fresh without a refresh"
    if name == "qwen2":
        weights.refresh()
        assert torch.equal(weights.layers[0].qkv.bias[-1], attention.v_proj.bias[-1].to(dtype))


def test_where_the_fused_blocks_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU from Ampere on, in bfloat16, within every window, where positions are turned alike in every batch and
    heads are of a width that flash attention takes."""
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000)
    policy = replace(random_policy("mistral"), compute=torch.bfloat16)
    weights = policy.fused
    monkeypatch.setattr(weights, "width", 64)
    monkeypatch.setattr(weights.layers[0], "window", batch.layout.segments.positions)
    assert policy.fused_for(batch.layout) is weights
    policy.gradient_checkpointing, policy.tokenizer = True, load_policy("nano").tokenizer
    assert model_assumptions(policy, []) == []
    assert "system.gradient_checkpointing has no effect" in model_assumptions(replace(policy, compute=None), [])[0]
    assert replace(policy, compute=None).fused_for(batch.layout) is None

    def refused(where: Any, name: str, value: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            return policy.fused_for(batch.layout) is None

    assert refused(weights.layers[0], "window", batch.layout.segments.positions - 1)
    assert refused(weights, "width", 12)
    assert refused(weights, "width", 264)
    assert refused(policy.model.model.rotary_emb, "rope_type", "dynamic")
    assert refused(torch.cuda, "get_device_capability", lambda _: (7, 5))


def test_a_window_that_only_the_config_of_a_llama_names_is_not_used() -> None:
    """As in the stock model: its block reads none. Configs of models made from Mistral may still have one."""
    policy = random_policy("llama")
    policy.model.config.sliding_window = 6
    assert policy.fused is not None
    assert [layer.window for layer in policy.fused.layers] == [None, None]
    mistral = random_policy("mistral-window").fused
    assert mistral is not None
    assert [layer.window for layer in mistral.layers] == [6, 6]


def test_a_frozen_model_has_no_gradient(trains_anywhere: None) -> None:
    policy = random_policy("llama")
    policy.model.to(DEVICE).requires_grad_(False)
    if DEVICE == "cuda":
        policy.compute = torch.bfloat16
    [batch] = pack(random_groups(groups=1, group_size=2), 10_000, DEVICE)
    logp_NL, _ = logprobs(policy, batch, 1.0)
    logp_NL.sum().backward()
    assert all(weight.grad is None for weight in policy.model.parameters())


def test_prompts_come_first_then_completions_group_after_group() -> None:
    groups = random_groups(groups=2, group_size=2)
    groups[1] = replace(groups[1], completions=groups[1].completions[:1])
    [batch] = pack(groups, 10_000)
    rows = [*(g.prompt_tokens for g in groups), *(c.tokens for g in groups for c in g.completions)]
    assert batch.tokens_T.tolist() == np.concatenate(rows).tolist()
    segments, lengths = batch.layout.segments, [len(row) for row in rows]
    assert segments.every.queries.tolist() == np.cumsum([0, *lengths]).tolist()
    assert segments.groups.keys.tolist() == np.cumsum([0, *lengths[:2]]).tolist()
    assert segments.groups.queries.tolist() == [0, lengths[2] + lengths[3], sum(lengths[2:])]
    assert segments.prompt_tokens == lengths[0] + lengths[1]
    assert segments.positions == max(lengths[0] + lengths[2], lengths[0] + lengths[3], lengths[1] + lengths[4])
