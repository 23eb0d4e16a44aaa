"""GRPO in plain PyTorch; a small model learns to add in half a minute: grpo_minimal.py [model folder] [steps]"""

import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS, GROUP_SIZE, MAX_NEW_TOKENS, LR, BETA, CLIP = 8, 8, 32, 3e-4, 0.04, 0.2


def sample(model, prompt_ids, end):
    """Sample a group from the full distribution; each completion stops after its end token."""
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": MAX_NEW_TOKENS}
    rows = model.generate(torch.tensor([prompt_ids] * GROUP_SIZE), **options)[:, len(prompt_ids) :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def reward(text, answer):
    return float(text.rpartition(")")[2] == answer)  # the answer follows the working, if any: (18;16)168


def log_probs(model, prompt_ids, completions_ids):
    """Log-probabilities of the completion tokens [G, L], and a mask: 1 for tokens, 0 for padding."""
    rows = [torch.tensor([*prompt_ids, *completion]) for completion in completions_ids]
    ids, mask = (pad_sequence(x, batch_first=True) for x in (rows, [torch.ones_like(row) for row in rows]))
    logits = model(input_ids=ids, attention_mask=mask).logits[:, len(prompt_ids) - 1 : -1]  # t predicts t + 1
    logp = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, len(prompt_ids) :, None])[..., 0]
    return logp, mask[:, len(prompt_ids) :]


def grpo_loss(model, reference, prompt_ids, completions_ids, rewards, beta, clip):
    """−min(ρA, clip(ρ)A) + β·KL, averaged over the tokens of each completion, then over the group."""
    advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-4))[:, None]
    logp, mask = log_probs(model, prompt_ids, completions_ids)
    ref_logp = log_probs(reference, prompt_ids, completions_ids)[0].detach()  # no gradient for the reference
    ratio = (logp - logp.detach()).exp()  # one update per batch: value 1, gradient ∇logp
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    loss = loss + beta * ((ref_logp - logp).exp() - (ref_logp - logp) - 1)
    return ((loss * mask).sum(dim=1) / mask.sum(dim=1)).mean()


if __name__ == "__main__":
    torch.manual_seed(1)
    folder = (sys.argv[1:] or [f"{sys.path[0]}/../src/grpo/model/hub/nano"])[0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, reference = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for step in range(int((sys.argv[2:] or [60])[0])):
        reward_mean = 0.0
        for numbers in torch.randint(10, 100, (PROMPTS, 3)).tolist():
            prompt_ids = tokenizer("+".join(map(str, numbers)) + "=").input_ids
            completions_ids = sample(model, prompt_ids, tokenizer.eos_token_id)
            texts = tokenizer.batch_decode(completions_ids, skip_special_tokens=True)
            rewards = torch.tensor([reward(text, str(sum(numbers))) for text in texts])
            (grpo_loss(model, reference, prompt_ids, completions_ids, rewards, BETA, CLIP) / PROMPTS).backward()
            reward_mean += rewards.mean().item() / PROMPTS
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step:2}  reward {reward_mean:.2f}  {'#' * round(40 * reward_mean)}")
