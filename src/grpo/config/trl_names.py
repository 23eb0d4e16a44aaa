"""Names of TRL (GRPOConfig, its TrainingArguments, its command line) and peft (LoraConfig): what to write instead.

Fields with the same name here, such as beta, are not listed. docs/from-trl.md shows the same table with defaults.
"""

from grpo.config.unknown import OtherName

_RENAMED = {
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "learning_rate": "lr",
    "max_steps": "steps",
    "stop_strings": "stop",
    "max_prompt_length": "dataset.max_prompt_tokens",
    "metric_for_best_model": "checkpoints.best",
    "num_iterations": "optimizer.epochs",
    "epsilon": "loss.clip_low",
    "epsilon_high": "loss.clip_high",
    "delta": "loss.cap",
    "entropy_coef": "loss.entropy",
    "importance_sampling_level": "loss.ratio",
    "mask_truncated_completions": "loss.mask_truncated",
    "sapo_temperature_pos": "loss.gate_up",
    "sapo_temperature_neg": "loss.gate_down",
    "ref_model_sync_steps": "loss.refresh",
    "vllm_importance_sampling_cap": "loss.correction_cap",
    "vllm_importance_sampling_clip_max": "loss.correction_cap",
    "warmup_steps": "optimizer.warmup_steps",
    "max_grad_norm": "optimizer.grad_clip",
    "output_dir": "system.runs",
    "run_name": "run",
    "save_steps": "checkpoint_every",
    "save_total_limit": "checkpoints.keep",
    "eval_steps": "evaluation.every",
    "full_determinism": "system.deterministic",
    "ddp_timeout": "scale.timeout",
    # Arguments of GRPOTrainer and of its command line.
    "model_name_or_path": "model",
    "train_dataset": "data",
    "dataset_name": "data",
    "dataset_config": "dataset.subset",
    "dataset_train_split": "dataset.split",
    "dataset_test_split": "dataset.heldout",
    "eval_dataset": "dataset.heldout",
    "reward_funcs": "reward",
    "environment_factory": "episodes.env",
    "chat_template_path": "dataset.chat_template",
    # peft
    "r": "lora.rank",
    "lora_r": "lora.rank",
    "lora_alpha": "lora.alpha",
    "target_modules": "lora.targets",
    "lora_target_modules": "lora.targets",
}
_SCALES = {"group": "group_std", "true": "group_std", "batch": "batch_std", "none": "none", "false": "none"}
_CORRECTIONS = {
    "token_truncate": "token",
    "token_mask": "token_mask",
    "sequence_truncate": "sequence",
    "sequence_mask": "sequence_mask",
}
_BY_VALUE = {
    "loss_type": OtherName(
        values={
            "grpo": {"loss.aggregate": "sequence"},
            "dr_grpo": {"loss.aggregate": "constant"},
            "dapo": {"loss.aggregate": "token"},
            "luspo": {"loss.aggregate": "constant"},
            "cispo": {"algorithm": "cispo"},
            "sapo": {"algorithm": "sapo"},
            "vespo": {
                "loss.aggregate": "token",
                "loss.ratio": "product",
                "loss.surrogate": "examples/vespo.py:gamma",
            },
        }
    ),
    "scale_rewards": OtherName(values={value: {"loss.scale": ours} for value, ours in _SCALES.items()}),
    "use_bias_correction_kl": OtherName(values={"true": {"loss.kl": "k3_ratio"}, "false": {"loss.kl": "k3"}}),
    "multi_objective_aggregation": OtherName(
        values={"sum_then_normalize": {"loss.parts": "sum"}, "normalize_then_sum": {"loss.parts": "normalise"}}
    ),
    "vllm_importance_sampling_mode": OtherName(
        values={value: {"loss.correction": ours} for value, ours in _CORRECTIONS.items()}
    ),
    "vllm_importance_sampling_correction": OtherName(
        values={"false": {"loss.correction": "none"}}, why="set loss.correction: token, sequence or one with _mask"
    ),
    "lr_scheduler_type": OtherName(
        "optimizer.schedule", values={"constant_with_warmup": {"optimizer.schedule": "constant"}}
    ),
    "bf16": OtherName(values={"true": {"system.dtype": "mixed"}, "false": {"system.dtype": "float32"}}),
    "fp16": OtherName(values={"true": {"system.dtype": "half"}, "false": {}}),
    "use_cpu": OtherName(values={"true": {"system.device": "cpu"}, "false": {}}),
    "report_to": OtherName("system.log", values={"none": {}, "[]": {}}),
    "sync_ref_model": OtherName(values={"false": {}}, why="set loss.refresh to the steps between two copies"),
    "use_vllm": OtherName(values={"false": {}}, why="not available: sampling is built in; remove it"),
    "use_peft": OtherName(values={"false": {}}, why="set lora.rank, such as 16"),
    "num_train_epochs": OtherName(
        "epochs", why="set steps: one pass over N rows takes N / prompts_per_step; rows repeat"
    ),
    "per_device_train_batch_size": OtherName(
        "batch_size",
        why="the batch is prompts_per_step x group_size completions; micro-batches follow from system.token_budget",
    ),
}
SAMPLING = {
    "not available in training: completions would come from a truncated distribution, so the policy ratio would "
    "compare log-probs of two different distributions; remove it (grpo sample and grpo eval accept it)": """
        top_p top_k min_p""",
    "not available: completions would come from another distribution than the policy's; remove it": """
        repetition_penalty""",
    "not available, but for stop_strings, which is stop here: completions would come from another distribution than "
    "the policy's; remove it": "generation_kwargs",
}
"""Names by the reason why they are refused: they change the sampled distribution."""
_WITHOUT = {
    **SAMPLING,
    "dropout is always off, so that sampler and trainer compute the same policy; remove it": """
        disable_dropout dropout lora_dropout attention_dropout neftune_noise_alpha""",
    "only LoRA's rank, alpha and targets can be set; remove it": """
        use_rslora use_dora modules_to_save init_lora_weights lora_modules_to_save bias""",
    "not available: sampling is built in; remove it": """
        vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url
        vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size vllm_importance_sampling_clip_min cache_implementation
        use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged
        use_cache""",
    "not available: scale.shard divides optimizer and weights among GPUs; remove it": """
        ds3_gather_for_generation deepspeed fsdp fsdp_config accelerator_config parallelism_config""",
    "gradients are summed over ranks once per step, in float32; remove it": """
        ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph""",
    "a rank's number comes from the launcher; remove it": "local_rank",
    "the loss is normalised over the whole batch, at any number of GPUs; remove it": "average_tokens_across_devices",
    "only rank 0 logs and writes checkpoints; remove it": """
        log_on_each_node save_on_each_node log_level_replica eval_use_gather_object""",
    "micro-batches follow from system.token_budget and never change the gradient; remove it": """
        gradient_accumulation_steps auto_find_batch_size pad_to_multiple_of eval_accumulation_steps""",
    "the batch is prompts_per_step x group_size completions; remove it": "generation_batch_size",
    "set optimizer.minibatches to steps_per_generation / gradient_accumulation_steps": "steps_per_generation",
    "one sampled and one greedy completion per held-out problem; remove it": """
        num_generations_eval per_device_eval_batch_size""",
    "a weight is part of the reward: --reward rewards.py:correct*2,rewards.py:short*0.5, or in Python "
    "grpo.train(…, reward=[(correct, 2.0), (short, 0.5)])": "reward_weights",
    "a reward model is named in reward: model:OWNER/NAME": "reward_model_name_or_path",
    "the reference becomes a copy of the policy (loss.refresh), never a mixture; remove it": "ref_model_mixup_alpha",
    "not available in any loss here; remove it": """
        off_policy_mask_threshold top_entropy_quantile
        use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target router_aux_loss_coef
        label_smoothing_factor""",
    "VESPO is a function in examples/vespo.py, with its constants; set loss.surrogate": """
        vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg""",
    "the number format is system.dtype; no other argument of the model can be set": """
        model_init_kwargs cast_lm_head_to_fp32 tf32 bf16_full_eval fp16_full_eval attn_implementation""",
    "quantised weights cannot be trained; remove it": "load_in_4bit load_in_8bit use_bnb_nested_quant",
    "not available: code that comes with a model is not run; remove it": "trust_remote_code",
    "set episodes.max_turns: one more than the iterations, because it counts the answer too": """
        max_tool_calling_iterations""",
    "not available: sampling is built in; a task's method reply, episodes.tools or episodes.env answers the model": """
        rollout_func""",
    "every column of a row is kept; remove it": "remove_unused_columns label_names include_for_metrics",
    "the order of the problems follows from seed; remove it": """
        shuffle_dataset data_seed train_sampling_strategy length_column_name ignore_data_skip dataloader_drop_last
        dataloader_in_order""",
    "problems are read in the trainer's process; remove it": """
        dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor
        dataloader_multiprocessing_context""",
    "the optimizer is AdamW, with epsilon 1e-8; remove it": "optim optim_args optim_target_modules adam_epsilon",
    "set optimizer.warmup_steps, the number of steps": "warmup_ratio",
    "linear and cosine fall to 0 over steps; remove it": "lr_scheduler_kwargs",
    "kernels are chosen for the model and device; remove it": """
        use_liger_kernel liger_kernel_config torch_compile torch_compile_backend torch_compile_mode
        torch_empty_cache_steps gradient_checkpointing_kwargs""",
    "every step and every completion is recorded; remove it": """
        logging_steps logging_strategy logging_first_step logging_nan_inf_filter log_completions log_unique_prompts
        num_completions_to_print log_multimodal log_completions_hub_repo include_num_input_tokens_seen
        skip_memory_metrics batch_eval_metrics prediction_loss_only""",
    "loggers are named in system.log; their own settings come from their environment": """
        project trackio_space_id trackio_bucket_id trackio_static_space_id""",
    "set system.quiet for less output": "disable_tqdm log_level debug",
    "nothing is uploaded; grpo export writes a folder that can be": """
        push_to_hub hub_model_id hub_always_push hub_private_repo hub_revision hub_strategy hub_token""",
    "set evaluation.every: the steps between evaluations, 0 for the start and the end only": """
        eval_strategy eval_delay eval_on_start do_eval eval_do_concat_batches""",
    "set checkpoint_every: the steps between checkpoints, 0 for the end only": "save_strategy enable_jit_checkpoint",
    "a checkpoint holds everything that a resume needs; remove it": """
        save_only_model restore_callback_states_from_checkpoint""",
    "the best checkpoint is kept too; grpo export --best writes it": """
        load_best_model_at_end greater_is_better""",
    "name the run and resume it: --run NAME --resume": "resume_from_checkpoint",
    "grpo train trains, grpo eval evaluates; remove it": "do_train do_predict",
    "pass callbacks to grpo.train": "callbacks",
    "reward models bring their own tokenizer; remove it": "reward_processing_classes",
}

TRL_NAMES: dict[str, OtherName] = {
    **{name: OtherName(path) for name, path in _RENAMED.items()},
    **_BY_VALUE,
    **{name: OtherName(why=why) for why, names in _WITHOUT.items() for name in names.split()},
}
"""By TRL's or peft's name."""
