"""What is typed after `grpo`: one file per command, its options beside the function that uses them."""
