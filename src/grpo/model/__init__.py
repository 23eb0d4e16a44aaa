"""The policy and everything that computes with weights: attention, packing, LoRA, critic, optimizer, memory."""
