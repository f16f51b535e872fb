"""Epochs, and up to where two logs are one: by the examples of the book, and against the bytes themselves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haservice.replication.lineage.epochs import (
    EPOCHS_MAX,
    UNKNOWN_EPOCH,
    Common,
    Epoch,
    Lineage,
    LogSpan,
    Plan,
    Step,
    common_point,
    epochs_text,
    plan,
)


def lineage(*said: str) -> Lineage:
    """`2@300B` is epoch 2, from offset 300, of master B."""
    epochs = []
    for one in said:
        number, _, rest = one.partition("@")
        start = rest.rstrip("ABCD")
        epochs.append(Epoch(int(number), int(start), rest[len(start) :] or ("M" if int(number) else "")))
    return Lineage(tuple(epochs))


OWN = lineage("1@100", "2@300", "3@500")

# -- up to where two logs are one -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "point"),
    [
        (OWN, 700, lineage("1@100", "2@300", "3@450"), 600, 450),
        (OWN, 700, OWN, 600, 600),
        (OWN, 700, lineage("1@200", "2@500"), 600, None),
        (lineage("1@100", "2@300", "3@500", "4@800"), 1000, OWN, 700, 700),
    ],
)
def test_the_examples_that_are_published(
    own: Lineage, own_end: int, theirs: Lineage, their_end: int, point: int | None
) -> None:
    common = common_point(own, own_end, theirs, their_end)
    assert (common.point if common is not None else None) == point
    mirrored = common_point(theirs, their_end, own, own_end)
    assert (mirrored.point if mirrored is not None else None) == point


def test_an_epoch_that_wrote_nothing_does_not_hide_the_next_one() -> None:
    """A was master of epoch 2 and wrote 500 bytes that nobody got; B wrote 700 others from the same offset."""
    a = lineage("1@0A", "2@1000A")
    b = lineage("1@0A", "2@1000A").begun(Epoch(3, 1000, "B"))
    assert epochs_text(b) == "1@0, 3@1000"
    assert common_point(a, 1500, b, 1700) == Common(1000, False)


def test_one_number_in_two_logs_is_one_epoch_only_from_one_start_and_of_one_master() -> None:
    own = lineage("1@0A", "2@100A")
    assert common_point(own, 300, lineage("1@0A", "2@100B"), 300) == Common(100, False)
    assert common_point(own, 300, lineage("1@0A", "2@90A"), 300) == Common(90, False)
    assert common_point(own, 300, lineage("1@0B", "2@100B"), 300) is None


def test_epochs_that_a_log_has_not_reached_do_not_count() -> None:
    own = lineage("1@0A", "2@1000B")
    assert own.up_to(999) == lineage("1@0A")
    assert own.up_to(1000) == own
    assert common_point(own, 500, lineage("1@0A"), 1200) == Common(500, True)


def test_epoch_0_is_one_wherever_a_log_begins() -> None:
    own, theirs = lineage("0@200"), lineage("0@0", "1@5000A")
    assert common_point(own, 4000, theirs, 6000) == Common(4000, False)
    assert common_point(own, 5200, theirs, 6000) == Common(5000, False)


# -- a table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [("2@0A", "1@100A"), ("1@0A", "1@100A"), ("1@100A", "2@100A")])
def test_a_table_that_does_not_rise_is_none(said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="do not rise"):
        lineage(*said)


def test_a_new_epoch_is_newer_than_all_that_stay() -> None:
    one = lineage("1@0A", "4@100B")
    assert one.next_number == 5
    assert Lineage().next_number == 1
    with pytest.raises(ValueError, match="no newer"):
        one.begun(Epoch(4, 200, "C"))
    assert epochs_text(one.begun(Epoch(4, 100, "C"))) == "1@0, 4@100"
    assert epochs_text(one.begun(Epoch(5, 50, "C"))) == "1@0, 5@50"


def test_the_oldest_epochs_are_forgotten() -> None:
    one = Lineage()
    for number in range(1, EPOCHS_MAX + 3):
        one = one.begun(Epoch(number, number * 10, "A"))
    assert len(one.epochs) == EPOCHS_MAX
    assert one.epochs[0].number == 3
    assert epochs_text(one) == "… 1000@10000, 1001@10010, 1002@10020"


def test_who_wrote_which_byte() -> None:
    assert OWN.epoch_at(99) is None
    assert [OWN.epoch_at(at).number for at in (100, 299, 300, 10**9)] == [1, 1, 2, 3]  # type: ignore[union-attr]
    assert [OWN.end_of(index, 700) for index in range(3)] == [300, 500, 700]
    assert OWN.last == Epoch(3, 500, "M")
    assert Lineage().last is None


def test_a_log_that_is_older_than_its_lineage_is_of_epoch_0() -> None:
    assert Lineage().or_unknown(LogSpan(0, 0)) == Lineage()
    assert Lineage().or_unknown(LogSpan(64, 100)).epochs[0].identity == (UNKNOWN_EPOCH, 0, "")
    assert OWN.or_unknown(LogSpan(64, 100)) is OWN


# -- what a slave has to do -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "own_log", "theirs", "their_log", "step", "position", "lost"),
    [
        # Without a byte: all there is.
        (lineage(), (0, 0), lineage("1@0A"), (128, 900), Step.FROM_START, 128, 0),
        (lineage("3@0B"), (64, 64), lineage("3@0B", "4@9A"), (0, 99), Step.FROM_START, 0, 0),
        # It has followed a newer master, who had no byte either.
        (lineage("3@0B"), (64, 64), lineage("1@0A"), (0, 0), Step.OLD_MASTER, 64, 0),
        # Two masters of one number: who follows one does not cut what it has acknowledged for the other.
        (lineage("1@0A", "2@500B"), (0, 800), lineage("1@0A", "2@600A"), (0, 900), Step.OLD_MASTER, 800, 0),
        # Behind, level.
        (lineage("1@0A"), (0, 500), lineage("1@0A", "2@700A"), (0, 900), Step.CONTINUE, 500, 0),
        (lineage("1@0A"), (0, 900), lineage("1@0A"), (0, 900), Step.CONTINUE, 900, 0),
        (lineage("1@0A"), (0, 700), lineage("1@0A", "2@700B"), (0, 700), Step.CONTINUE, 700, 0),
        # An old master that comes back with what nobody got.
        (lineage("1@0A"), (0, 800), lineage("1@0A", "2@700B"), (0, 900), Step.TRUNCATE, 700, 100),
        (lineage("1@0A"), (0, 800), lineage("1@0A", "2@700B"), (0, 700), Step.TRUNCATE, 700, 100),
        (lineage("1@0A", "2@500A"), (0, 800), lineage("1@0A", "3@400B"), (0, 900), Step.TRUNCATE, 400, 400),
        # Behind retention: alone, and with bytes that the master has not.
        (lineage("1@0A"), (0, 500), lineage("1@0A"), (640, 900), Step.FROM_START, 640, 0),
        (lineage("1@0A"), (0, 700), lineage("1@0A", "2@600B"), (640, 900), Step.FROM_START, 640, 100),
        # The master lost its tail: in its open epoch, and even the beginning of that.
        (lineage("1@0A"), (0, 800), lineage("1@0A"), (0, 700), Step.AHEAD, 800, 0),
        (lineage("1@0A", "2@500A"), (0, 800), lineage("1@0A", "2@500A"), (0, 400), Step.AHEAD, 800, 0),
        # The slave wrote on as a master of its own: behind 500 it is nothing that this master had.
        (lineage("1@0A"), (0, 800), lineage("1@0A", "2@500B"), (0, 400), Step.AHEAD, 500, 300),
        # A master that another one has replaced.
        (lineage("1@0A", "2@500B"), (0, 800), lineage("1@0A"), (0, 900), Step.OLD_MASTER, 800, 0),
        (lineage("1@0A", "2@500B"), (0, 400), lineage("1@0A"), (0, 900), Step.OLD_MASTER, 400, 0),
        (lineage("1@0A", "2@500C"), (0, 800), lineage("1@0A"), (0, 900), Step.OLD_MASTER, 800, 0),
        # But an epoch of our own that wrote nothing was given up.
        (lineage("1@0A", "2@500C"), (0, 500), lineage("1@0A"), (0, 900), Step.CONTINUE, 500, 0),
        # Nothing in common, or nothing left of it.
        (lineage("1@0B"), (0, 500), lineage("1@0A"), (0, 900), Step.REFUSE, 500, 0),
        (lineage("1@0A"), (600, 800), lineage("1@0A", "2@500B"), (0, 900), Step.REFUSE, 800, 0),
        (lineage("1@0A"), (600, 800), lineage("1@0A"), (0, 400), Step.REFUSE, 800, 0),
    ],
)
def test_what_a_slave_has_to_do(
    own: Lineage,
    own_log: tuple[int, int],
    theirs: Lineage,
    their_log: tuple[int, int],
    step: Step,
    position: int,
    lost: int,
) -> None:
    """C is the slave."""
    decided = plan(own, LogSpan(*own_log), theirs, LogSpan(*their_log), "C")
    assert (decided.step, decided.position, decided.lost_bytes) == (step, position, lost)
    says_nothing = step is Step.CONTINUE or (step is Step.FROM_START and LogSpan(*own_log).is_empty)
    assert bool(decided.reason) is not says_nothing


def test_a_slave_between_two_masters_of_one_number_says_that_a_further_epoch_ends_it_and_follows_that() -> (
    None
):
    """Each of them began the number where the network was cut; only one of them is left."""
    own, log = lineage("1@0A", "2@500B"), LogSpan(0, 500)
    left = plan(own, log, lineage("1@0A", "2@400A"), LogSpan(0, 900))
    assert left.step is Step.OLD_MASTER
    assert "two masters have epoch 2, and we follow the other one; a further mqadmin failover" in left.reason
    further = plan(own, log, lineage("1@0A", "2@400A", "3@900A"), LogSpan(0, 900))
    assert (further.step, further.position, further.lost_bytes) == (Step.TRUNCATE, 400, 100)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("2000@500B", "2001@900A"),  # ours was promoted beside theirs, whose machine went down since
        ("2001@500B", "2000@400A"),
        ("2007@500B", "2007@500A"),
    ],
)
def test_no_restart_makes_one_of_two_promoted_masters_the_newer_one(own: str, theirs: str) -> None:
    for begin in (("1@0A",), ()):  # also where the two logs share nothing
        decided = plan(lineage(*begin, own), LogSpan(0, 600), lineage(*begin, theirs), LogSpan(0, 900), "C")
        assert decided.step is Step.OLD_MASTER
        assert "two masters have epoch 2000" in decided.reason or "epoch 2007" in decided.reason
    further = plan(
        lineage("1@0A", own), LogSpan(0, 600), lineage("1@0A", theirs, "3000@950A"), LogSpan(0, 990), "C"
    )
    assert further.step is Step.TRUNCATE


def test_which_of_two_epochs_outranks_the_other() -> None:
    promoted, restarted, rival, later = (
        Epoch(2000, 0, "A"), Epoch(2001, 5, "A"), Epoch(2003, 0, "B"), Epoch(3000, 0, "B"),
    )  # fmt: skip
    assert restarted.outranks(promoted)
    assert not promoted.outranks(restarted)
    for one in (promoted, restarted):
        assert one.rivals(rival)
        assert not one.outranks(rival)
        assert not rival.outranks(one)
        assert later.outranks(one)
        assert not later.rivals(one)
    # Before the first promotion the higher number is the newer one, as ever.
    assert Epoch(4, 0, "A").outranks(Epoch(3, 0, "B"))


# -- against the bytes ------------------------------------------------------------------------------


@dataclass
class Broker:
    """A log of marks, each of which is written once in the world."""

    name: str
    log: list[int] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    writes: bool = False  # it may go on in its last epoch

    @property
    def span(self) -> LogSpan:
        return LogSpan(0, len(self.log))


class World:
    """Brokers of one name: some are masters, all at once if it comes to that."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.marks = self.epochs = 0
        self.brokers = [Broker(name) for name in "ABCD"]
        self.steps: list[Step] = []

    def step(self) -> None:
        broker = self.chance.choice(self.brokers)
        action = self.chance.choice(
            ["promote", "write", "write", "lose", "follow", "follow", "follow", "follow"]
        )
        getattr(self, action)(broker)

    def promote(self, broker: Broker) -> None:
        number = broker.lineage.next_number + self.chance.choice([0, 0, 1])
        self.epochs += 1
        broker.lineage = broker.lineage.begun(
            Epoch(number, len(broker.log), broker.name, began_ms=self.epochs)
        )
        broker.writes = True

    def write(self, broker: Broker) -> None:
        if broker.writes:
            for _ in range(self.chance.randrange(1, 9)):
                self.marks += 1
                broker.log.append(self.marks)

    def lose(self, broker: Broker) -> None:
        """The power goes: what was not flushed is gone, and what comes next is another epoch."""
        if self.chance.random() < 0.3:
            del broker.log[self.chance.randrange(len(broker.log) + 1) :]
            broker.writes = False

    def follow(self, broker: Broker) -> None:
        master = self.chance.choice([one for one in self.brokers if one is not broker])
        decided = plan(broker.lineage, broker.span, master.lineage, master.span, broker.name)
        self.steps.append(decided.step)
        self.check(broker, master, decided)
        if decided.step not in (Step.CONTINUE, Step.TRUNCATE, Step.FROM_START):
            return
        del broker.log[decided.position :]
        assert broker.log == master.log[: decided.position]
        broker.lineage, broker.writes = master.lineage, False
        until = self.chance.randrange(decided.position, len(master.log) + 1)
        broker.log += master.log[decided.position : until]

    def check(self, own: Broker, theirs: Broker, decided: Plan) -> None:
        common = common_point(own.lineage, len(own.log), theirs.lineage, len(theirs.log))
        same = 0
        for mine, its in zip(own.log, theirs.log, strict=False):
            if mine != its:
                break
            same += 1
        assert (common.point if common is not None else 0) == same, (own, theirs)
        if decided.step is Step.AHEAD:
            assert own.log[: len(theirs.log)] == theirs.log
            assert len(theirs.log) < decided.position <= len(own.log)


@given(st.integers(0, 2**32), st.integers(10, 200))
@example(4150000285, 105)  # A gave epoch 7 up, and begins another 7 at the same offset
@settings(max_examples=300)
def test_lineages_say_of_any_two_logs_what_their_bytes_say(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()


def test_the_worlds_above_come_to_every_step() -> None:
    seen: set[Step] = set()
    for seed in range(60):
        world = World(random.Random(seed))
        for _ in range(150):
            world.step()
        seen.update(world.steps)
    assert seen == set(Step)


@pytest.mark.parametrize(
    ("own", "theirs", "step"),
    [
        (("1000@0A",), ("2000@0B",), Step.FROM_START),
        (("1000@0A", "1001@50A"), ("2000@0B", "3000@80C"), Step.FROM_START),
        (("2000@0A",), ("1000@0B",), Step.REFUSE),
        (("0@0",), ("2000@0B",), Step.REFUSE),
        (("1000@40A",), ("2000@0B",), Step.REFUSE),
    ],
)
def test_a_master_that_had_no_byte_when_it_was_promoted_is_followed_from_the_start(
    own: tuple[str, ...], theirs: tuple[str, ...], step: Step
) -> None:
    found = plan(lineage(*own), LogSpan(0, 100), lineage(*theirs), LogSpan(0, 90), "A", is_appointed=True)
    assert found.step is step
    assert found.lost_bytes == (100 if step is Step.FROM_START else 0)
    assert plan(lineage(*own), LogSpan(0, 100), lineage(*theirs), LogSpan(0, 90), "A").step is Step.REFUSE
