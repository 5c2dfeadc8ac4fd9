"""Topic names: each is valid on the wire, and similar names are not prefixes of one another."""

import pytest

from mosaic_bus import topics
from mosaic_bus.wire.envelope import decode_topic

RUN = "01K0000000000000000000000A"
ALL = [
    topics.STORED,
    *(make("node-1") for make in (topics.host_state, topics.streams, topics.build)),
    *(make(RUN) for make in (topics.run_state, topics.journal, topics.log, topics.summary, topics.frame)),
    *(make(RUN) for make in (topics.repair, topics.reply, topics.welcome)),
    topics.command(topics.supervisor("node-1")),
    topics.service_state(topics.supervisor("node-1")),
]


@pytest.mark.parametrize("topic", ALL)
def test_every_topic_can_travel(topic):
    assert decode_topic(topic.encode()) == topic


def test_hosts_whose_names_begin_alike_are_told_apart():
    assert not topics.host_state("node-12").startswith(topics.host_state("node-1"))
    assert not topics.command("scheduler2").startswith(topics.command("scheduler"))


def test_welcome_sorts_after_all_others():
    assert max(ALL) == topics.welcome(RUN)


@pytest.mark.parametrize(
    ("name", "good"), [("node-1", True), ("", False), ("a.b", False), ("A", False), ("a" * 64, False), ("a\n", False)]
)
def test_host_names(name, good):
    assert topics.is_host_name(name) is good
