"""The rules by which a batch closes."""

import pytest

from mcprun_batcher.queue import BatchingPolicy, Call, ModelQueue, Server

POLICY = BatchingPolicy(max_batch_size=10, max_wait=0.015, min_batch_ratio=0.3, dispatch_when_idle=True)


def call(key: int, *, rows: int = 1, shape_key: bytes = b"", arrived: float = 0.0, size: int = 4) -> Call:
    return Call(
        key=key,
        source=None,
        source_id=key,
        model=("m", "1"),
        rows=rows,
        shape_key=shape_key,
        request=b"x" * size,
        arrived=arrived,
    )


def queue_with(policy: BatchingPolicy, *, credits: int = 1, busy: bool = False) -> ModelQueue:
    queue = ModelQueue(policy)
    server = Server("w", instances=1, credits=credits)
    if busy:
        server.running.add(99)
    queue.servers["w"] = server
    return queue


def keys(batch: tuple[Server, list[Call]] | None) -> list[int] | None:
    return None if batch is None else [call.key for call in batch[1]]


def test_an_idle_instance_gets_what_is_there_at_once() -> None:
    queue = queue_with(POLICY)
    queue.append(call(1))
    queue.append(call(2))
    assert keys(queue.next_batch(0.0)) == [1, 2]


def test_a_second_batch_leaves_at_once_while_the_way_takes_longer_than_the_run() -> None:
    queue = queue_with(POLICY, credits=2, busy=True)
    queue.append(call(1))
    assert queue.next_batch(0.0) is None
    for _ in range(20):
        queue.servers["w"].learn(under_way=0.002, run=0.0002, at_once=True)
    assert keys(queue.next_batch(0.0)) == [1]


def test_a_long_run_is_noticed_also_when_its_batch_had_to_wait() -> None:
    server = Server("w", instances=1, credits=2, running={99})
    for _ in range(20):
        server.learn(under_way=0.002, run=0.0002, at_once=True)
    assert server.idle
    server.learn(under_way=0.1, run=0.09, at_once=False)
    assert not server.idle


def test_a_batch_that_waited_for_the_one_before_does_not_make_its_run_look_short() -> None:
    server = Server("w", instances=1, credits=2, running={99})
    for _ in range(20):
        server.learn(under_way=0.1, run=0.045, at_once=False)
    assert not server.idle


def test_without_a_credit_nothing_leaves() -> None:
    queue = queue_with(POLICY, credits=0)
    queue.append(call(1))
    assert queue.next_batch(100.0) is None
    assert queue.next_close() is None


def test_a_busy_worker_waits_for_the_early_ratio() -> None:
    queue = queue_with(POLICY, busy=True)
    queue.append(call(1))
    queue.append(call(2))
    assert queue.next_batch(0.001) is None
    queue.append(call(3))
    assert keys(queue.next_batch(0.001)) == [1, 2, 3]


def test_a_busy_worker_gets_a_batch_when_its_first_call_has_waited_long_enough() -> None:
    queue = queue_with(POLICY, busy=True)
    queue.append(call(1, arrived=1.0))
    assert queue.next_batch(1.014) is None
    assert queue.next_close() == pytest.approx(1.015)
    assert keys(queue.next_batch(1.015)) == [1]


def test_without_dispatch_when_idle_an_idle_worker_waits_too() -> None:
    queue = queue_with(BatchingPolicy(max_batch_size=10, max_wait=0.015, min_batch_ratio=0.3, dispatch_when_idle=False))
    queue.append(call(1))
    assert queue.next_batch(0.0) is None
    assert keys(queue.next_batch(0.015)) == [1]


def test_a_batch_is_never_larger_than_its_bound_and_counts_rows() -> None:
    queue = queue_with(POLICY, credits=3)
    for key in range(4):
        queue.append(call(key, rows=4))
    assert keys(queue.next_batch(0.0)) == [0, 1]
    assert keys(queue.next_batch(0.0)) == [2, 3]


def test_a_model_without_a_batch_dimension_runs_one_call_at_a_time() -> None:
    queue = queue_with(BatchingPolicy(max_batch_size=0), credits=2, busy=True)
    queue.append(call(1))
    queue.append(call(2))
    assert keys(queue.next_batch(0.0)) == [1]
    assert keys(queue.next_batch(0.0)) == [2]


def test_different_shapes_never_share_a_batch_and_the_oldest_goes_first() -> None:
    queue = queue_with(POLICY, credits=2)
    queue.append(call(1, shape_key=b"b", arrived=0.2))
    queue.append(call(2, shape_key=b"a", arrived=0.1))
    queue.append(call(3, shape_key=b"b", arrived=0.3))
    assert keys(queue.next_batch(1.0)) == [2]
    assert keys(queue.next_batch(1.0)) == [1, 3]


def test_calls_with_no_rows_travel_with_the_others() -> None:
    queue = queue_with(POLICY)
    queue.append(call(1, rows=0))
    queue.append(call(2, rows=10))
    assert keys(queue.next_batch(0.0)) == [1, 2]


def test_what_comes_back_goes_to_the_head_in_its_old_order() -> None:
    queue = queue_with(POLICY)
    queue.append(call(3))
    queue.prepend([call(1), call(2)])
    queue.check_integrity()
    assert keys(queue.next_batch(0.0)) == [1, 2, 3]


def test_a_full_queue_refuses_by_count_and_by_bytes_and_says_the_bound() -> None:
    queue = ModelQueue(BatchingPolicy(max_queue_size=2, max_queue_bytes=10))
    queue.append(call(1, size=6))
    assert queue.refusal(call(2, size=4)) is None
    assert "max_queue_bytes" in (queue.refusal(call(2, size=5)) or "")
    queue.append(call(2, size=1))
    assert "max_queue_size" in (queue.refusal(call(3, size=1)) or "")


def test_the_least_busy_worker_is_chosen() -> None:
    queue = queue_with(POLICY, busy=True)
    queue.servers["v"] = Server("v", instances=1, credits=1)
    queue.append(call(1))
    batch = queue.next_batch(0.0)
    assert batch is not None
    assert batch[0].worker_id == "v"
