"""Charts, samples and the rows of a pair's page, from answers that brokers could give."""

from __future__ import annotations

from haservice.admin.calls import Broker
from haservice.admin.commands.ha.ha_questions import Seen
from haservice.console import charts
from haservice.console.changes.kinds import ChangeAsked
from haservice.console.changes.running import ChangeState, RoleChange
from haservice.console.changes.steps import WebSteps
from haservice.console.charts import LaneSpan, chart, timeline
from haservice.console.pages.pair import shown_changes
from haservice.console.replica_rows import charts_of, rows_of
from haservice.console.sampling import PairSample, sample_of
from haservice.errors import RemotingUnreachable
from haservice.remoting.bodies.clients import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def stock(end: int, behind: int, puts: int) -> list[Seen]:
    """A stock pair: it tells of its logs' ends and of its sends."""
    return [
        Seen(
            Broker("c", "broker-a", 0, MASTER), "ASYNC_MASTER", end, info={"putMessageTimesTotal": str(puts)}
        ),
        Seen(Broker("c", "broker-a", 1, SLAVE), "SLAVE", end - behind),
    ]


def ours(end: int, behind: int, puts: int) -> list[Seen]:
    link = HAConnectionRuntimeInfo("10.0.0.2:50000", end - behind, behind, in_sync=True, broker_addr=SLAVE)
    status = HARuntimeInfo(True, end, 1, [link])
    master, slave = stock(end, 0, puts)
    return [Seen(master.broker, "SYNC_MASTER", end, status, info=master.info), slave]


def test_rates_are_the_difference_of_two_looks() -> None:
    for make in (stock, ours):
        first = sample_of(100.0, make(1000, 400, 50), None)
        assert (first.lag_bytes, first.link_bytes, first.sends) == ({SLAVE: 400.0}, {}, None)
        second = sample_of(102.0, make(3000, 0, 70), first)
        assert (second.lag_bytes, second.link_bytes, second.sends) == ({SLAVE: 0.0}, {SLAVE: 1200.0}, 10.0)


def test_a_restarted_or_new_master_has_no_rate_yet() -> None:
    first = sample_of(100.0, stock(1000, 0, 50), None)
    assert sample_of(102.0, stock(1000, 0, 1), first).sends is None
    master, slave = stock(1000, 0, 60)
    other = [Seen(slave.broker, "ASYNC_MASTER", 1000, info=master.info)]
    assert sample_of(102.0, other, first).sends is None
    gone = [Seen(master.broker, "MASTER", failure=RemotingUnreachable(MASTER, "refused")), slave]
    dead = sample_of(102.0, gone, first)
    assert (dead.lag_bytes, dead.link_bytes, dead.sends) == ({}, {}, None)


def test_what_a_stock_broker_does_not_tell_is_unknown() -> None:
    master, slave = rows_of(stock(1000, 400, 5), 0)
    assert (master.epoch, master.is_ours, master.actions) == (None, False, ())
    assert (slave.lag_bytes, slave.lag_seconds, slave.link, slave.in_sync) == (400, None, None, None)


def test_a_line_has_a_gap_where_nobody_looked_and_ends_with_its_last_value() -> None:
    points = [(100.0, 1.0), (102.0, 2.0), (150.0, 4.0), (152.0, 8.0), (10.0, 99.0)]
    made = chart("Sends", {"sends": sorted(points)}, 160.0, 100.0, lambda value: f"{value:g}/s")
    missing = chart("Sends", {"sends": points[:4]}, 160.0, 100.0, str, looked_s=154.0)
    assert [line.last for line in missing.lines] == ["unknown"]  # the last look did not find it
    (line,) = made.lines
    assert [piece.count(",") for piece in line.paths] == [2, 2]  # and nothing of what is too old
    assert line.last == "8/s"
    assert [tick.text for tick in made.y_ticks] == ["0/s", "5/s", "10/s"]
    x, y = map(float, line.paths[1].split()[-1].split(","))
    assert charts.LEFT < x < charts.WIDTH
    assert charts.TOP < y < charts.HEIGHT - charts.BOTTOM


def test_an_axis_of_messages_has_whole_numbers() -> None:
    for sends in (0.0, 0.3, 1.0, 3.0, 5.0, 7.0, 90.0, 1234.0):
        samples = [PairSample(100.0, sends=sends)]
        ticks = [tick.text for tick in charts_of(samples, 101.0)[1].y_ticks]
        bottom, middle, top = (int(one.removesuffix("/s").replace(",", "")) for one in ticks)
        assert (bottom, middle * 2) == (0, top)
        assert top >= sends


def test_what_ended_has_no_newest_value_and_no_lag() -> None:
    samples = [sample_of(100.0, ours(1000, 0, 0), None)]
    assert charts_of(samples, 102.0)[0].lines[0].last == "0 B"
    assert charts_of(samples, 100.0 + charts.GAP_S + 1)[0].lines[0].last == "unknown"
    assert lag_of_slave("TRANSFER") == 0
    assert lag_of_slave("READY") is None, "where a lost master ended says nothing of the lag"


def test_a_slave_that_became_the_master_has_no_lag_of_now() -> None:
    samples = [PairSample(100.0, {"b": 5.0}, master="a"), PairSample(160.0, {"a": 0.0}, master="b")]
    assert [(line.name, line.last) for line in charts_of(samples, 160.0)[0].lines] == [
        ("a", "0 B"),
        ("b", "-"),
    ]


def lag_of_slave(link: str) -> int | None:
    """Its master does not answer."""
    master, slave = stock(1000, 0, 5)
    client = HAClientRuntimeInfo(MASTER, max_offset=1000, state=link, master_end=1000)
    status = HARuntimeInfo(False, 1000, 0, [], client)
    gone = Seen(master.broker, "MASTER", failure=RemotingUnreachable(MASTER, "refused"))
    return rows_of([gone, Seen(slave.broker, "SLAVE", 1000, status)], 0)[1].lag_bytes


def test_changes_that_were_refused_push_no_others_off_the_page() -> None:
    def made(number: int, state: ChangeState) -> RoleChange:
        return RoleChange(str(number), ChangeAsked("failover", "broker-a"), None, number, WebSteps(), state)

    real = [made(number, ChangeState.DONE) for number in range(4)]
    refused = [made(number, ChangeState.REFUSED) for number in range(10, 30)]
    newest_first = [*reversed(refused), *reversed(real)]
    assert shown_changes(newest_first) == [*newest_first[:2], *reversed(real)]


def test_an_axis_of_bytes_has_whole_units() -> None:
    samples = [sample_of(100.0, stock(5_000_000, 3_000_000, 0), None)]
    lag = charts_of(samples, 101.0)[0]
    assert [tick.text for tick in lag.y_ticks] == ["0 B", "2.0 MiB", "4.0 MiB"]
    assert lag.lines[0].last == "2.9 MiB"


def test_a_short_epoch_is_seen_beside_a_long_one() -> None:
    made = timeline(
        [
            LaneSpan("a", "1", 0.0, 1e6, ""),
            LaneSpan("b", "2", 1e6, 1e6 + 1, ""),
            LaneSpan("a", "3", 1e6 + 1, 1e6 + 1, ""),
        ]
    )
    assert made is not None
    assert [bar.label for bar in made.bars] == ["1", "", ""]
    assert all(
        bar.width >= charts.BAR_MIN and bar.x + bar.width <= charts.TIMELINE_WIDTH for bar in made.bars
    )
    assert [bar.y for bar in made.bars] == [0, charts.LANE + charts.LANE_GAP, 0]
    assert timeline([]) is None
