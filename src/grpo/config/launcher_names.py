"""Names of the launchers that people know (torchrun, accelerate, DeepSpeed): what to write instead."""

from grpo.config.unknown import OtherName

_RENAMED = {
    "nproc_per_node": "scale.gpus",
    "num_gpus": "scale.gpus",
    "n_gpus": "scale.gpus",
    "n_gpus_per_node": "scale.gpus",
    "nnodes": "scale.nodes",
    "num_nodes": "scale.nodes",
    "num_machines": "scale.nodes",
    "rdzv_endpoint": "scale.join",
    "max_restarts": "scale.restarts",
    "nccl_timeout": "scale.timeout",
}
_WITHOUT = {
    "set scale.gpus, the processes of one host, and scale.nodes, the hosts": "num_processes world_size",
    "set scale.join to HOST:PORT of the first host": """
        master_addr master_port main_process_ip main_process_port rdzv_id rdzv_backend hostfile""",
    "hosts need no number: all but the first meet it at scale.join; remove it": "node_rank machine_rank",
    "set scale.shard: none, optimizer (moments, as ZeRO-1) or weights (float32 weights too)": """
        zero_stage zero3 use_fsdp use_deepspeed use_ddp multi_gpu deepspeed_config_file config_file sharding_strategy
        fully_shard""",
    "not available: every rank holds the whole model; remove it": """
        tensor_parallel_size pipeline_parallel_size context_parallel_size expert_parallel_size""",
}

LAUNCHER_NAMES: dict[str, OtherName] = {
    **{name: OtherName(path) for name, path in _RENAMED.items()},
    **{name: OtherName(why=why) for why, names in _WITHOUT.items() for name in names.split()},
}
"""By the launcher's name."""
