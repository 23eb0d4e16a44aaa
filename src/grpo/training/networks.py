"""The networks of a run and their optimizer, as first loaded or as a checkpoint left them."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.config import Config, Optimizer, SftConfig
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.model.critic import Critic, make_critic
from grpo.model.device import placement
from grpo.model.load import load_policy, load_tokenizer
from grpo.model.lora import adapt, freeze
from grpo.model.lora import restore as restore_adapter
from grpo.model.optimizer import AdamW, make_optimizer
from grpo.model.plan.shard import Shard
from grpo.model.policy import Policy
from grpo.model.prompt import set_chat_template
from grpo.record.checkpoints import Checkpoint
from grpo.training.memory_check import check_shape


@dataclass(frozen=True, eq=False)
class Networks:
    policy: Policy
    optimizer: AdamW
    reference: Policy | None = None
    """The model the run began with, or the last refresh; None without a KL term."""
    critic: Critic | None = None


def load_networks(
    config: Config, checkpoint: Checkpoint | None, world: World = ALONE, shard: Shard = "none"
) -> Networks:
    """Policy and optimizer, with the reference and critic that the loss needs.

    Only rank 0 has the checkpoint; the other ranks load the model that the run began with and receive the rest.
    """
    policy = load_trainable(config, checkpoint, world)
    reference = None
    if config.loss.beta and config.lora.rank:
        reference = policy  # with its adapter switched off
    elif config.loss.beta:
        reference = load_policy(config.model, **placement(config.system))
        freeze(reference)
    optimizer = make_optimizer(policy, config.optimizer, world, shard)
    critic = make_critic(config, policy, world, shard) if config.loss.baseline == "value" else None
    if critic is not None:
        critic.body.gradient_checkpointing = config.system.gradient_checkpointing
    networks = Networks(policy, optimizer, reference, critic)
    if world.any(checkpoint is not None):
        restore_policy(policy, optimizer, checkpoint, config.model, world)
        _restore_others(networks, config, checkpoint, world)
    return networks


def load_for_sft(
    config: SftConfig, checkpoint: Checkpoint | None, world: World = ALONE, shard: Shard = "none"
) -> Networks:
    policy = load_trainable(config, checkpoint, world)
    settings = Optimizer(adam_beta2=0.98, weight_decay=config.weight_decay)
    optimizer = make_optimizer(policy, settings, world, shard)
    if world.any(checkpoint is not None):
        restore_policy(policy, optimizer, checkpoint, config.model, world)
    return Networks(policy, optimizer)


def load_trainable(config: Config | SftConfig, checkpoint: Checkpoint | None, world: World = ALONE) -> Policy:
    """The policy with the weights of the checkpoint, or else of the model; with LoRA, the model with the checkpoint's
    adapter, or else a new one. The tokenizer and its chat template are the model's: a resume may accept others."""
    whole = None if config.lora.rank else checkpoint
    if whole:
        check_shape(config.model, whole.model)
    policy = load_policy(str(whole.model) if whole else config.model, **placement(config.system))
    policy.tokenizer = load_tokenizer(config.model) if whole else policy.tokenizer
    policy.gradient_checkpointing = config.system.gradient_checkpointing
    set_chat_template(policy.tokenizer, config.dataset.chat_template)
    policy.chat_template_kwargs = config.dataset.template_kwargs
    if config.lora.rank:
        adapt(policy, config.lora, config.seed)
        if checkpoint:
            restore_adapter(policy.model, checkpoint.model)
    world.broadcast([weight.detach() for _, weight in policy.trainable()])
    return policy


def restore_policy(
    policy: Policy, optimizer: AdamW, checkpoint: Checkpoint | None, model: str, world: World = ALONE
) -> None:
    """Name, number of updates and AdamW's moments; the weights are loaded with the policy."""
    policy.name = model
    policy.version = world.from_first(lambda: checkpoint.state["policy_version"] if checkpoint else 0)
    optimizer.restore(checkpoint.tensors("optimizer") if checkpoint else {})


def _restore_others(networks: Networks, config: Config, checkpoint: Checkpoint | None, world: World) -> None:
    if networks.critic is not None:
        if checkpoint and not checkpoint.has("critic"):
            raise GrpoError(
                "field loss.baseline: the run began without a critic, so it has none to resume; start another run"
            )
        networks.critic.restore(checkpoint.tensors("critic") if checkpoint else {})
    if networks.reference is not None and config.loss.refresh:
        if checkpoint:
            restore_reference(networks.reference, checkpoint)
        world.broadcast(list(networks.reference.weights().values()))


def restore_reference(reference: Policy, checkpoint: Checkpoint) -> None:
    """The last refresh before the checkpoint. Without one, the reference is still the model the run began with."""
    if checkpoint.has("reference"):
        refreshed = checkpoint.tensors("reference")
        # The file holds tied weights once, under their first name.
        reference.model.load_state_dict(
            {name.removeprefix("reference/"): tensor for name, tensor in refreshed.items()}, strict=False
        )
