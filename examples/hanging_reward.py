"""A reward that never returns: every call is ended after scoring.seconds, and the run stops with the reason."""

import time

import grpo

data = [{"prompt": f"{n}+{n + 7}+{n + 11}=", "answer": str(3 * n + 18)} for n in range(10, 80)]
config = grpo.Config(model="nano", steps=60, scoring={"seconds": 0.3}, evaluation={"problems": 8, "probes": 0})
try:
    grpo.train(config, reward=lambda problem, text: time.sleep(1e9), data=data)
except grpo.GrpoError as error:
    print(error)
