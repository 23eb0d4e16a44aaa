"""Which completions run, and who owns which block. Numbers are worked out by hand from the rules of schedule.py."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.errors import GrpoError
from grpo.rollout.schedule import BLOCK_TOKENS, TOKENS_BETWEEN_LOOKS, Look, Room, Schedule


def go_on(schedule: Schedule, looks: int) -> list[Look]:
    """Looks in which nothing has ended, 32 tokens apart."""
    seen = []
    for _ in range(looks):
        schedule.advance(TOKENS_BETWEEN_LOOKS)
        seen.append(schedule.look([]))
    return seen


# --- decisions by hand ------------------------------------------------------------------------------------------------


def test_completions_start_while_their_reserves_fit():
    # A completion has 1 block at first. Nothing has ended, so the mean is taken as 192: a row of 1 token reserves
    # 192 · exp(-191 / 192) = 71 tokens, 2 blocks. The prompts take 1, 1 and 2.
    # 1 + 2 + 2 for the first problem, 1 + 2 for a row of the second: all 8.
    schedule = Schedule([64, 10, 65], 2, 192, Room(blocks=8, rows=10))
    assert schedule.look([]) == Look(started=(0, 1, 2), dropped=(), running=(0, 1, 2), finished=())
    assert schedule.time_N.tolist() == [1, 1, 1, 0, 0, 0]
    assert schedule.table_NT.tolist() == [[1, 0, 0], [2, 0, 0], [3, 0, 0], *[[0, 0, 0]] * 3]
    assert schedule.prompt_table_PT.tolist() == [[4, 0], [5, 0], [0, 0]]
    assert schedule.table_NT.dtype == schedule.prompt_table_PT.dtype == schedule.time_N.dtype == np.int32


def test_rows_get_blocks_before_they_need_them():
    schedule = Schedule([64, 10, 65], 2, 192, Room(blocks=8, rows=10))
    schedule.look([])
    schedule.advance(
        32
    )  # the last of 32 more tokens has index 64 and no keys yet: those of 33 + 31 are exactly a block
    schedule.look([])
    assert schedule.table_NT[:3].tolist() == [[1, 0, 0], [2, 0, 0], [3, 0, 0]]
    schedule.advance(1)
    assert schedule.look([]) == Look((), (), (0, 1, 2), ())
    assert schedule.table_NT[:3].tolist() == [[1, 6, 0], [2, 7, 0], [3, 8, 0]]
    schedule.advance(1000)
    assert schedule.time_N.tolist() == [192, 192, 192, 0, 0, 0], "no row goes on beyond the limit"


def test_rows_that_end_make_room_for_the_next():
    schedule = Schedule([64, 10, 65], 2, 192, Room(blocks=8, rows=10))
    schedule.look([])
    go_on(schedule, 1)
    schedule.advance(32)
    # 3 · 64 tokens and one ending: the mean is (192 + 192) / 2. Rows 1 and 2, of 65 tokens, reserve
    # 192 · exp(-127 / 192) = 99 tokens, the 2 blocks that they have from now on. The other 2 are free for a new row.
    assert schedule.look([0]) == Look(started=(3,), dropped=(), running=(1, 2, 3), finished=())
    assert schedule.table_NT.tolist() == [[0, 0, 0], [2, 1, 0], [3, 6, 0], [7, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert schedule.time_N.tolist() == [0, 65, 65, 1, 0, 0]
    # A second ending: the mean is 384 / 3 = 128, and a new row reserves 128 · exp(-127 / 128) = 48 tokens. Rows
    # 2 and 3 have 2 + 1, their prompt 1; the last prompt takes 2, its rows 1 + 1.
    assert schedule.look([1]) == Look(started=(4, 5), dropped=(), running=(2, 3, 4, 5), finished=(0,))
    assert (schedule.prompt_table_PT > 0).tolist() == [[False, False], [True, False], [True, True]]


def test_the_youngest_row_is_dropped_and_is_the_next_to_start():
    # 4 blocks a completion, of which 256 · exp(-255 / 256) = 94 tokens, 2 blocks, are reserved at the start: 1 + 3 · 2.
    schedule = Schedule([64], 5, 256, Room(blocks=7, rows=4))
    assert schedule.look([]).running == (0, 1, 2)
    looks = go_on(schedule, 6)
    # At 129 tokens (160 with those ahead) rows need a third block, at 193 a fourth.
    assert [look.dropped for look in looks] == [(), (), (), (2,), (), (1,)]
    assert [look.running for look in looks] == [(0, 1, 2)] * 3 + [(0, 1), (0, 1), (0,)]
    assert not any(look.started or look.finished for look in looks)
    assert schedule.time_N.tolist() == [193, 0, 0, 0, 0]
    assert (schedule.table_NT[0] > 0).all()
    assert not schedule.table_NT[1:].any()
    (look,) = go_on(schedule, 1)
    assert look == Look((), (), (0,), ()), "2 of 7 blocks are free; without an ending, a row reserves 3"
    # Rows have sampled 32 · (4 · 3 + 2 · 2 + 1) = 544 tokens: the mean is (544 + 256) / 2, and a new row reserves
    # 256 · exp(-255 / 400) = 136 tokens, 3 blocks; after two more endings 200 · exp(-199 / 200) = 74, 2 blocks.
    assert schedule.look([0]) == Look(started=(1, 2), dropped=(), running=(1, 2), finished=())
    assert schedule.look([1, 2]).started == (3, 4)
    assert schedule.look([3, 4]) == Look((), (), (), finished=(0,))
    assert schedule.done


def test_older_rows_get_the_blocks_of_the_youngest():
    # 8 blocks a completion, 3 reserved: three rows start. At 257 tokens (288 with those ahead) all
    # three need a fifth block: 16 blocks. At 321 they need a sixth: row 2 gives its 5 to the others. At 449 (480 with
    # those ahead) both have 8: with the prompt's, all 17.
    schedule = Schedule([64], 3, 512, Room(blocks=17, rows=4))
    assert schedule.look([]).running == (0, 1, 2)
    looks = go_on(schedule, 15)
    assert [look.dropped for look in looks] == [()] * 9 + [(2,)] + [()] * 5
    assert looks[-1].running == (0, 1)
    assert (schedule.table_NT[:2] > 0).all()


def test_several_rows_are_dropped_where_one_does_not_suffice():
    schedule = Schedule([64], 8, 192, Room(blocks=17, rows=8), ahead=1)
    assert schedule.look([]).running == tuple(range(8)), "2 of 3 blocks reserved"
    schedule.advance(100)
    assert schedule.look([]).dropped == ()
    schedule.advance(30)  # a third block for 8 rows: 5 rows have 15; the sixth would need 3 of the 1 that is left
    assert schedule.look([]) == Look((), dropped=(5, 6, 7), running=(0, 1, 2, 3, 4), finished=())


def test_a_group_is_split_where_rows_are_few():
    schedule = Schedule([10, 10], 3, 64, Room(blocks=100, rows=4))
    assert schedule.look([]).running == (0, 1, 2, 3)
    assert schedule.look([1]) == Look(started=(4,), dropped=(), running=(0, 2, 3, 4), finished=())
    assert schedule.look([4]) == Look(started=(5,), dropped=(), running=(0, 2, 3, 5), finished=())
    assert schedule.look([3, 5]) == Look((), (), (0, 2), finished=(1,)), "problems finish in any order"
    assert schedule.look([0]).finished == ()
    assert not schedule.done
    assert schedule.look([2]).finished == (0,)
    assert schedule.done


def test_a_prompt_has_blocks_while_it_has_rows():
    schedule = Schedule([65], 2, 64, Room(blocks=4, rows=1))
    schedule.look([])
    assert schedule.prompt_table_PT.tolist() == [[2, 3]]
    assert schedule.look([0]).started == (1,)
    assert len({*schedule.prompt_table_PT[0].tolist(), *schedule.table_NT[1].tolist()} - {0}) == 3
    schedule.look([1])
    assert not schedule.prompt_table_PT.any()


def test_an_ending_known_only_after_the_drop_counts():
    schedule = Schedule([64], 2, 256, Room(blocks=7, rows=4))
    schedule.look([])
    assert go_on(schedule, 6)[-1].dropped == (1,)
    schedule.advance(32)
    assert schedule.look([1]) == Look((), (), (0,), ())
    assert schedule.look([0]) == Look((), (), (), finished=(0,))


def test_no_problems_are_done_at_once():
    assert Schedule([], 8, 128, Room(blocks=8, rows=4)).done


def test_one_completion_larger_than_the_room():
    Schedule([64, 65], 2, 128, Room(blocks=4, rows=1))
    message = (
        "field max_new_tokens: 129 tokens and a prompt of 65 need 5 blocks of 64, and the KV cache has 4; "
        "lower max_new_tokens or shorten the prompt"
    )
    with pytest.raises(GrpoError, match=re.escape(message)):
        Schedule([64, 65], 2, 129, Room(blocks=4, rows=1))


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_paused_row_keeps_its_blocks_and_goes_on():
    schedule = Schedule([64, 64], 2, 128, Room(blocks=100, rows=3))
    assert schedule.look([]).running == (0, 1, 2)
    schedule.advance(32)
    blocks = schedule.table_NT.copy()
    look = schedule.look([], {0: 20, 2: 33})
    assert look == Look(started=(3,), dropped=(), running=(1, 3), finished=()), "a paused row is none of the 3"
    assert schedule.table_NT[[0, 2]].tolist() == blocks[[0, 2]].tolist()
    assert schedule.time_N.tolist() == [20, 33, 33, 1]
    schedule.advance(32)
    assert schedule.look([], {1: 50, 3: 7}) == Look((), (), (), ()), "nothing runs: answers are awaited"
    assert schedule.prompt_table_PT.all()
    schedule.resume([0, 2, 3])
    assert schedule.look([1]) == Look((), (), (0, 2, 3), (), resumed=(0, 2, 3))
    assert schedule.time_N.tolist() == [20, 0, 33, 7], "a row goes on from the end of its turn"
    schedule.advance(32)
    assert schedule.look([], {0: 30, 2: 60, 3: 9}).running == ()
    assert schedule.look([0, 2, 3]) == Look((), (), (), finished=(0, 1))
    assert schedule.done


def test_rows_go_on_in_order_before_others_start():
    schedule = Schedule([64], 4, 128, Room(blocks=100, rows=2))
    schedule.look([])
    schedule.advance(32)
    assert schedule.look([], {0: 5, 1: 5}).running == (2, 3)
    schedule.advance(32)
    assert schedule.look([], {2: 5, 3: 5}).running == ()
    schedule.resume([1, 2, 3])
    assert schedule.look([0]) == Look((), (), (1, 2), (), resumed=(1, 2)), "two rows at a time"
    schedule.advance(32)
    assert schedule.look([1]) == Look((), (), (2, 3), (), resumed=(3,))


def test_paused_rows_are_dropped_first_the_youngest_of_them_first():
    # 4 blocks a completion, 2 of them reserved at the start: 1 + 4 · 2.
    schedule = Schedule([64], 4, 256, Room(blocks=9, rows=4))
    assert schedule.look([]).running == (0, 1, 2, 3)
    go_on(schedule, 3)  # 97 tokens: 2 blocks each
    schedule.advance(32)
    # Rows 0 and 3 need a third block at 129 tokens. The 9 blocks are taken: paused row 2 gives its 2.
    assert schedule.look([], {1: 100, 2: 110}) == Look((), dropped=(2,), running=(0, 3), finished=())
    assert schedule.time_N.tolist() == [129, 100, 0, 129]
    # At 193 they need a fourth: row 1 gives its 2.
    assert [look.dropped for look in go_on(schedule, 2)] == [(), (1,)]
    schedule.advance(32)
    assert schedule.look([], {0: 200, 3: 220}).running == (), "nothing runs, and rows 1 and 2 wait for their answers"
    schedule.resume([0, 1, 2, 3])
    # Row 0 has its 4 blocks; so has row 3. Neither needs more. The dropped ones wait for blocks.
    assert schedule.look([]) == Look((), (), (0, 3), (), resumed=(0, 3))
    assert schedule.look([0, 3]) == Look(started=(1, 2), dropped=(), running=(1, 2), finished=())
    assert schedule.time_N.tolist() == [0, 1, 1, 0], "from the first token"


def test_one_row_goes_on_in_any_case():
    # Three rows of 2 blocks and a prompt of 1: all 7 are taken.
    schedule = Schedule([64], 3, 256, Room(blocks=7, rows=3))
    assert schedule.look([]).running == (0, 1, 2)
    go_on(schedule, 2)
    schedule.advance(32)
    assert schedule.look([], {0: 90, 1: 97, 2: 98}) == Look((), (), (), ())
    schedule.resume([0, 1, 2])
    # Until the next look, rows 0 and 1 have 121 and 128 tokens with keys; row 2 has 129, which need a third block.
    assert schedule.look([]) == Look((), (), (0, 1), (), resumed=(0, 1))
    schedule.advance(32)
    assert schedule.look([], {0: 110, 1: 120}) == Look((), dropped=(1,), running=(2,), finished=(), resumed=(2,))
    schedule.resume([0, 1])
    assert schedule.look([]) == Look((), (), (0, 2), (), resumed=(0,)), "row 0 gets the block that is left"


@pytest.mark.parametrize(
    ("rows", "blocks", "resumed", "dropped"), [(2, 5, (0,), (1,)), (3, 7, (0, 1), (2,)), (8, 17, (0, 1), (7,))]
)
def test_a_dropped_row_makes_room_for_others(rows: int, blocks: int, resumed: tuple, dropped: tuple):
    """A prompt of 1 block, and rows of 98 tokens: 2 blocks each, and 3 for their next tokens. All blocks are taken, so
    the youngest row gives its 2; the others get one each, in order."""
    schedule = Schedule([10], rows, 256, Room(blocks, rows))
    assert len(schedule.look([]).running) == rows
    go_on(schedule, 2)
    schedule.advance(32)
    schedule.look([], dict.fromkeys(range(rows), 98))
    schedule.resume(list(range(rows)))
    assert schedule.look([]) == Look((), dropped, resumed, (), resumed=resumed)


# --- any endings ------------------------------------------------------------------------------------------------------


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[int], int, int, Room, int, list[int]]:
    prompts = draw(st.lists(st.integers(1, 200), min_size=1, max_size=6))
    group_size, new_tokens = draw(st.integers(1, 6)), draw(st.integers(1, 700))
    whole = -(-max(prompts) // BLOCK_TOKENS) - (-new_tokens // BLOCK_TOKENS)
    room = Room(blocks=whole + draw(st.integers(0, 30)), rows=draw(st.integers(1, 12)))
    N = len(prompts) * group_size
    lengths = draw(st.lists(st.integers(1, new_tokens), min_size=N, max_size=N))
    return prompts, group_size, new_tokens, room, draw(st.sampled_from([1, 8, 32, 100])), lengths


def check_blocks(
    schedule: Schedule, prompts: list[int], rows: tuple[int, ...], running: tuple[int, ...] | None = None
) -> None:
    """Every running row has what it needs until the next look, every paused one what it has filled; their prompts too,
    and nobody else has anything. Without `running`, all rows run."""
    owned = [block for table in (schedule.table_NT, schedule.prompt_table_PT) for block in table[table > 0].tolist()]
    assert len(owned) == len(set(owned)), "owned twice"
    assert not owned or max(owned) <= schedule.room.blocks
    for n, blocks in enumerate(schedule.table_NT):
        ahead = schedule.ahead if running is None or n in running else 0
        tokens = min(int(schedule.time_N[n]) + ahead - 1, schedule.new_tokens)
        needed = -(-tokens // BLOCK_TOKENS) if n in rows else 0
        assert (blocks[:needed] > 0).all()
        assert n in rows or not blocks.any()
        assert (schedule.time_N[n] > 0) == (n in rows)
    with_rows = {n // schedule.group_size for n in rows}
    for p, blocks in enumerate(schedule.prompt_table_PT):
        needed = -(-prompts[p] // BLOCK_TOKENS) if p in with_rows else 0
        assert (blocks > 0).sum() == needed


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.randoms(use_true_random=False))
def test_any_endings(rollout, random):
    prompts, group_size, new_tokens, room, ahead, lengths = rollout
    schedule = Schedule(prompts, group_size, new_tokens, room, ahead)
    again = Schedule(prompts, group_size, new_tokens, room, ahead)
    waiting, running = list(range(len(lengths))), []  # oldest first
    unfinished = dict.fromkeys(range(len(prompts)), group_size)
    ended: list[int] = []
    while not schedule.done:
        look = schedule.look(ended)
        assert again.look(ended) == look
        running = [n for n in running if n not in ended]
        for n in ended:
            unfinished[n // group_size] -= 1
        assert list(look.finished) == sorted({n // group_size for n in ended if not unfinished[n // group_size]})
        assert not (look.dropped and look.started)
        kept = len(running) - len(look.dropped)
        assert list(look.dropped) == running[kept:], "the youngest"
        assert kept or not running, "the oldest stays"
        running, waiting = running[:kept], running[kept:] + waiting
        assert list(look.started) == waiting[: len(look.started)], "in order"
        running, waiting = running + waiting[: len(look.started)], waiting[len(look.started) :]
        assert list(look.running) == running == sorted(running), "so rows of a problem are adjacent"
        assert len(running) <= room.rows
        assert running or not waiting
        check_blocks(schedule, prompts, look.running)
        schedule.advance(ahead)
        again.advance(ahead)
        # An ending may be known one look late, unless the row is at its limit and nothing else would go on.
        over = [n for n in running if lengths[n] <= schedule.time_N[n]]
        ended = [n for n in over if schedule.time_N[n] == new_tokens or random.random() < 0.7]
    assert not running
    assert not waiting
    assert not any(unfinished.values())


@settings(max_examples=20, deadline=None)
@given(rollouts(), st.randoms(use_true_random=False))
def test_any_turns(rollout, random):
    """Rows pause at random ends of turns, and end at their length."""
    prompts, group_size, new_tokens, room, ahead, lengths = rollout
    schedule = Schedule(prompts, group_size, new_tokens, room, ahead)
    ends = [sorted({*random.choices(range(1, length + 1), k=random.randrange(4)), length}) for length in lengths]
    turn = [0] * len(lengths)
    ended: list[int] = []
    paused: dict[int, int] = {}
    asked: set[int] = set()
    in_memory: set[int] = set()
    while not schedule.done:
        look = schedule.look(ended, paused)
        in_memory -= {*ended}
        assert not {*look.started} & in_memory
        assert in_memory >= {*look.resumed, *look.dropped}
        assert not {*look.resumed} & {*look.dropped}
        in_memory = in_memory - {*look.dropped} | {*look.started}
        assert in_memory >= {*look.running}
        assert len(look.running) <= room.rows
        assert not asked & {*look.running}
        check_blocks(schedule, prompts, tuple(sorted(in_memory)), look.running)
        ended, paused = [], {}
        if look.running:
            schedule.advance(ahead)
            paused = {n: ends[n][turn[n]] for n in look.running if ends[n][turn[n]] <= schedule.time_N[n]}
            asked |= {*paused}
        elif not schedule.done:
            assert asked, "something always goes on"
            assert in_memory <= asked, "all that were answered go on before the next are"
            ended = sorted(n for n in asked if turn[n] + 1 == len(ends[n]))
            for n in asked:
                turn[n] += 1
            schedule.resume([n for n in asked if n not in ended])
            asked = set()
    assert not in_memory
