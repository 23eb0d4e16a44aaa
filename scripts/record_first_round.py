"""Records the first round of the lab's landing scene with the trainer's functions.

python scripts/record_first_round.py        a few seconds on one CPU core
"""

from __future__ import annotations

import json

from grpo.lab.first_round import FILE, computed

FILE.write_text(json.dumps(computed()) + "\n")
print(f"wrote {FILE}")
