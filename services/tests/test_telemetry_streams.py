"""Go-back-N without sockets: each line is taken once and in order, under loss, duplication, reordering and restarts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_services.telemetry.streams import ASK_AGAIN_S, TAIL_QUIET_S, Stream, StreamKey, Take

KEY = StreamKey("run", 1, "journal")


def stream_at(number: int = 0) -> Stream:
    return Stream(KEY, "host", number, number * 10, known=number)


def offer(stream: Stream, first: int, count: int, *, repair: bool = False, now: float = 0.0):
    return stream.offer(first, count, (first + count) * 10, repair=repair, now=now)


def test_batch_that_continues_is_taken_and_one_that_repeats_is_not():
    stream = stream_at()
    assert offer(stream, 0, 5) == Take(drop=0, first=0, lines=5)
    assert offer(stream, 0, 5) is None
    assert offer(stream, 3, 4) == Take(drop=2, first=5, lines=2)
    assert (stream.number, stream.offset) == (7, 70)
    assert stream.tick(0.0) is None


def test_hole_is_requested_at_once_and_only_once():
    stream = stream_at()
    assert offer(stream, 5, 5) is None
    ask = stream.tick(0.0)
    assert ask is not None
    assert (ask.host, ask.key, ask.number, ask.offset) == ("host", KEY, 0, 0)
    assert offer(stream, 10, 5) is None
    assert stream.tick(ASK_AGAIN_S / 2) is None
    assert stream.missing == 15


def test_unanswered_request_is_repeated_with_back_off():
    stream = stream_at()
    offer(stream, 5, 5)
    asked = [tick / 10 for tick in range(400) if stream.tick(tick / 10) is not None]
    assert asked == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]


def test_repair_with_a_hole_is_requested_again_soon():
    stream = stream_at()
    offer(stream, 50, 5)
    assert stream.tick(0.0) is not None
    offer(stream, 0, 10, repair=True, now=0.1)
    offer(stream, 20, 10, repair=True, now=0.1)
    assert stream.tick(0.2) is None
    ask = stream.tick(0.4)
    assert ask is not None
    assert ask.number == 10


def test_missing_tail_is_requested_after_a_quiet_time():
    stream = stream_at()
    offer(stream, 0, 5)
    stream.announce("host", 8, final=True)
    assert stream.tick(0.0) is None
    assert stream.tick(TAIL_QUIET_S - 0.1) is None
    ask = stream.tick(TAIL_QUIET_S)
    assert ask is not None
    assert ask.number == 5
    assert not stream.ended
    offer(stream, 5, 3, repair=True)
    assert stream.ended
    assert (stream.counts.received, stream.counts.repaired) == (5, 3)


def test_late_tail_is_not_requested():
    stream = stream_at()
    for tick in range(100):
        stream.announce("host", 5 * (tick + 1), final=False)
        assert stream.tick(tick * 0.4) is None
        offer(stream, 5 * tick, 5, now=tick * 0.4 + 0.1)
        assert stream.tick(tick * 0.4 + 0.2) is None


def test_empty_stream_that_has_ended_is_complete():
    stream = stream_at()
    assert not stream.ended
    stream.announce("host", 0, final=True)
    assert stream.ended


# ── generated faults ────────────────────────────────────────────────────────────────────────────────


def test_announced_end_overrules_a_forged_batch():
    stream = stream_at(5)
    offer(stream, 2**39, 1)
    assert stream.missing > 2**38
    stream.announce("host", 5, final=True)
    assert (stream.missing, stream.ended, stream.tick(100.0)) == (0, True, None)


class Bridge:
    """A model of the supervisor's bridge and of a bus that loses, duplicates and reorders."""

    def __init__(self, total: int, faults: st.DataObject) -> None:
        self.total = total
        self.sent = 0
        self.repair: int | None = None
        self.wire: list[tuple[int, int, bool]] = []
        self.faults: st.DataObject | None = faults

    def draw(self, strategy: st.SearchStrategy[int], calm: int) -> int:
        return calm if self.faults is None else self.faults.draw(strategy)

    def publish(self, first: int, limit: int, *, repair: bool) -> int:
        count = min(self.draw(st.integers(1, 7), 7), limit - first)
        for _ in range(self.draw(st.sampled_from([1, 1, 1, 0, 2]), 1)):
            late = self.draw(st.sampled_from([0, 0, 0, 1, 3]), 0)
            self.wire.insert(max(0, len(self.wire) - late), (first, count, repair))
        return first + count

    def pump(self) -> None:
        if self.repair is not None:
            self.repair = self.publish(self.repair, self.sent, repair=True) if self.repair < self.sent else None
        if self.sent < self.total:
            self.sent = self.publish(self.sent, self.total, repair=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.data())
def test_every_line_is_taken_exactly_once_in_order_under_loss_doubling_reordering_and_restarts(total, data):
    bridge = Bridge(total, data)
    stored: list[int] = []
    stream = stream_at()
    faulty_rounds = 60
    for tick in range(600):
        now = tick * 0.1
        if tick == faulty_rounds:
            bridge.faults = None
        if tick < faulty_rounds and data.draw(st.integers(0, 9)) == 0:  # killed: only stored lines are left
            stream = stream_at(len(stored))
            bridge.wire.clear()
        bridge.pump()
        for _ in range(data.draw(st.integers(0, len(bridge.wire))) if tick < faulty_rounds else len(bridge.wire)):
            first, count, repair = bridge.wire.pop(0)
            take = stream.offer(first, count, (first + count) * 10, repair=repair, now=now)
            if take is not None:
                assert take.first == first + take.drop
                stored += range(take.first, take.first + take.lines)
        if tick % 10 == 0:
            stream.announce("host", bridge.sent, final=bridge.sent == total)
        if (ask := stream.tick(now)) is not None:
            assert ask.offset == ask.number * 10
            bridge.repair = ask.number
        assert stored == list(range(len(stored)))
        if stream.ended and tick > faulty_rounds:
            break
    assert stored == list(range(total))
    assert stream.ended
    assert stream.missing == 0
