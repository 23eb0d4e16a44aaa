"""A trial on a page: it starts, streams, is cancelled; a second at the same time is refused politely."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.visit import Lab, open_page

pytestmark = pytest.mark.browser


def test_a_trial_starts_streams_and_is_cancelled(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/train")
    page = visit.page
    trial = page.locator(".trial").first
    trial.get_by_role("button", name="Train").click()
    trial.get_by_text("Training on this machine").wait_for()
    assert float(trial.locator("progress").get_attribute("value")) >= 1

    other = open_page(chromium, classroom, "/learn/train")
    asked = other.page.locator(".trial").nth(1)
    asked.get_by_role("button", name="Train").click()
    refusal = asked.get_by_role("alert")
    refusal.wait_for()
    assert "Only one can run at a time; wait for it or cancel it" in refusal.inner_text()
    # The refusal itself is an answer that a browser notes down.
    assert all("409" in complaint for complaint in other.complaints)
    other.page.close()

    trial.get_by_role("button", name="Cancel").click()
    trial.get_by_text("Cancelled").wait_for()
    assert visit.violations() + visit.complaints == []
    page.close()
