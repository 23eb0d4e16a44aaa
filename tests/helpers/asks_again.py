"""A task that asks again, loaded as people's files are: it answers in worker processes."""

from grpo.tasks.arithmetic import Arithmetic


class AsksAgain(Arithmetic):
    """Sums of three. It asks again once; twice after a first answer of an odd number of characters."""

    trusted = False

    def __init__(self):
        super().__init__("easy")

    def reply(self, problem, turns):
        return None if len(turns) > 1 + len(turns[0]) % 2 else problem.prompt[:3]
