"""Conversations of several turns: rounds, tools, environments, chat templates."""
