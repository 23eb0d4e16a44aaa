"""Several processes that train one model: `world` (who they are and how they talk), `sharded` (how gradients, weights
and moments are divided), `launch` (how they start)."""
