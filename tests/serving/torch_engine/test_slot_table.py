"""Slots against a plain model of them: what a slot is said to hold is what was stored there."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from serving.torch_engine.kv_slots import KeyValueSlots
from serving.torch_engine.running import Running
from serving.torch_engine.slot_table import MIN_SHARED_TOKENS, SlotTable, num_shared
from tests.serving.torch_engine.builders import make_running

PREFIX = list(range(100, 100 + MIN_SHARED_TOKENS))


def make_table(num_slots: int = 3) -> SlotTable:
    config = LlamaConfig(
        hidden_size=4, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    return SlotTable(KeyValueSlots(config, num_slots, capacity=40))


def compute(table: SlotTable, running: Running) -> None:
    """Write each pending token's own id where its keys and values belong, on all layers."""
    pending = torch.tensor(running.token_ids[running.num_cached :])
    positions = torch.arange(running.num_cached, len(running.token_ids))
    table.cache.select([table.active.index(running)], positions[None], len(running.token_ids))
    kv_BHQD = pending[None, None, :, None].expand(1, 1, -1, 2).float()
    for layer in range(2):
        table.cache.update(kv_BHQD, -kv_BHQD, layer)
    running.num_cached = len(running.token_ids)


def stored(table: SlotTable, running: Running) -> list[int]:
    slot = table.active.index(running)
    table.cache.select([slot], torch.tensor([[39]]), 40)
    zero = torch.zeros(1, 1, 1, 2)
    keys, values = table.cache.update(zero, zero, 1)
    assert torch.equal(keys, -values)
    return [int(key) for key in keys[0, 0, : running.num_cached, 0]]


def test_shared_prefixes_are_counted_but_never_the_last_token() -> None:
    assert num_shared([*PREFIX, 1, 2, 3], [*PREFIX, 1, 2, 9], 99) == MIN_SHARED_TOKENS + 2
    assert num_shared([*PREFIX, 1], [*PREFIX, 1], 99) == MIN_SHARED_TOKENS
    assert num_shared([*PREFIX, 1, 2], [*PREFIX, 1, 2, 3], MIN_SHARED_TOKENS + 1) == 17
    assert num_shared(PREFIX, PREFIX, 99) == 0  # fifteen are too few
    assert num_shared([5, *PREFIX], [*PREFIX, 5], 99) == 0


def test_a_prompt_starts_from_what_a_running_or_finished_one_left() -> None:
    table = make_table()
    first, second = make_running([*PREFIX, 1, 2]), make_running([*PREFIX, 1, 3])
    table.add(first)
    assert first.num_cached == 0
    compute(table, first)
    table.add(second)
    assert second.num_cached == MIN_SHARED_TOKENS + 1
    table.remove(first)
    table.remove(second)
    again = make_running([*PREFIX, 1, 2, 4])
    table.add(again)
    assert stored(table, again) == [*PREFIX, 1, 2]


def test_nothing_computed_before_a_weight_change_is_used_after_it() -> None:
    table = make_table()
    survivor, finished = make_running([*PREFIX, 1, 2]), make_running([*PREFIX, 1, 3])
    for running in (survivor, finished):
        table.add(running)
        compute(table, running)
    table.remove(finished)
    table.forget()
    fresh = make_running([*PREFIX, 1, 2, 4])
    table.add(fresh)
    assert fresh.num_cached == 0
    table.remove(fresh)
    table.remove(survivor)  # its slot mixes two versions
    later = make_running([*PREFIX, 1, 2, 4])
    table.add(later)
    assert later.num_cached == 0


def test_a_request_of_the_wave_is_waited_for_only_where_nothing_is_known_yet() -> None:
    table = make_table()
    leader, follower = make_running([*PREFIX, 1]), make_running([*PREFIX, 2])
    table.add(leader)
    assert table.gains_by_waiting(follower, [leader])
    assert not table.gains_by_waiting(make_running([7, *PREFIX]), [leader])
    compute(table, leader)
    table.add(follower)
    assert not table.gains_by_waiting(make_running([*PREFIX, 3]), [follower])


@settings(max_examples=30)
@given(st.data())
def test_every_slot_holds_what_it_says_however_requests_come_and_go(data: st.DataObject) -> None:
    table = make_table()
    for _ in range(data.draw(st.integers(1, 12))):
        can_add = len(table.active) < 3
        if can_add and (not table.active or data.draw(st.booleans())):
            tail = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
            running = make_running([*PREFIX[: data.draw(st.sampled_from([1, 16]))], *tail])
            table.add(running)
            assert stored(table, running) == running.token_ids[: running.num_cached]
            compute(table, running)
        else:
            table.remove(data.draw(st.sampled_from(table.active)))
        for running in table.active:
            assert stored(table, running) == running.token_ids
