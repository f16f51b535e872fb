"""What a member takes and gives up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haservice.client.consumer.queues.allocation import averagely
from haservice.client.consumer.queues.rebalance import RebalancePlan, TopicView, plan
from haservice.remoting.bodies.clients import MessageQueue


def queues_of(topic: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, "broker-a", number) for number in range(count))


def test_a_member_takes_its_part_and_gives_up_the_rest() -> None:
    queues = queues_of("T", 4)
    view = TopicView(queues, ["a", "b"])
    assert plan({"T": view}, [], "a", averagely) == RebalancePlan(queues[:2], ())
    assert plan({"T": view}, queues, "a", averagely) == RebalancePlan((), queues[2:])
    assert not plan({"T": view}, queues[:2], "a", averagely)


def test_what_is_not_known_changes_nothing() -> None:
    held = queues_of("T", 2)
    assert not plan({"T": TopicView(None, ["a"])}, held, "a", averagely)
    assert not plan({"T": TopicView(queues_of("T", 4), None)}, held, "a", averagely)


def test_a_member_that_the_broker_does_not_list_keeps_what_it_has_for_a_while() -> None:
    held = queues_of("T", 2)
    view = {"T": TopicView(queues_of("T", 4), ["b"])}
    assert not plan(view, held, "a", averagely)
    assert plan(view, held, "a", averagely, keep_unlisted=False) == RebalancePlan((), held)


def test_a_topic_that_is_subscribed_no_more_is_given_up_and_so_is_a_queue_that_is_gone() -> None:
    held = queues_of("T", 4) + queues_of("Other", 2)
    found = plan({"T": TopicView(queues_of("T", 3), ["a"])}, held, "a", averagely)
    assert found == RebalancePlan((), queues_of("Other", 2) + queues_of("T", 4)[3:])


def test_broadcasting_reads_every_queue() -> None:
    queues = queues_of("T", 3)
    assert plan({"T": TopicView(queues, shared=False)}, [], "a", averagely).take == queues


@given(
    counts=st.dictionaries(st.sampled_from(["A", "B", "C"]), st.integers(0, 12)),
    members=st.sets(st.sampled_from("abcdef"), min_size=1),
    before=st.sets(st.sampled_from("abcdef"), min_size=1),
)
def test_after_any_change_of_members_each_queue_has_one_owner(
    counts: dict[str, int], members: set[str], before: set[str]
) -> None:
    def views(group: set[str]) -> dict[str, TopicView]:
        return {topic: TopicView(queues_of(topic, count), group) for topic, count in counts.items()}

    owners: list[MessageQueue] = []
    for one in members:
        held = set(plan(views(before), [], one, averagely).take) if one in before else set()
        change = plan(views(members), held, one, averagely)
        assert not set(change.take) & held
        assert set(change.give_up) <= held
        owners += (held | set(change.take)) - set(change.give_up)
    everything = [queue for topic, count in counts.items() for queue in queues_of(topic, count)]
    assert sorted(owners) == sorted(everything)
