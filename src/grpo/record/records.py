"""Records of a run as flat dictionaries, ready for pandas."""

from __future__ import annotations

from typing import Any

from grpo.errors import GrpoError


class Records(list[dict[str, Any]]):
    """A list of flat dictionaries, one per record.

    >>> Records([{"step": 0, "reward_mean": 0.25}])[0]["reward_mean"]
    0.25
    """

    def to_pandas(self) -> Any:
        """The records as a `pandas.DataFrame`."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise GrpoError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self)
