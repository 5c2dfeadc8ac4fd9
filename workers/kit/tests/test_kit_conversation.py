"""A conversation in interactive mode: lanes, batches, all array encodings, and the original MOSAIC's verbs."""

import json
import os
import select
import threading

import numpy as np
import pytest

from mosaic_worker.arrays import Slots, as_base64
from mosaic_worker.close_watch import CloseWatch
from mosaic_worker.config import with_checkpoint
from mosaic_worker.conversation import Conversation, serve
from mosaic_worker.encoding import encode
from mosaic_worker.errors import ConfigError
from mosaic_worker.interactive import InteractiveWorker, StepResult
from mosaic_worker.meanings import find_noop

SPACE = {"type": "Discrete", "n": 5}


class Counter(InteractiveWorker):
    """Its action is the sum of a lane's observation plus the lane's seed; records the facts it is told."""

    def __init__(self):
        self.told = []
        self.seeds = {}

    def init_agent(self, observation_space, action_space, seed, agent):
        self.seeds[agent, 0] = seed or 0

    def inform(self, agent, facts):
        self.told.append((agent, facts))

    def begin_episode(self, agent, seed, episode, lane):
        self.seeds[agent, lane] = seed

    def select_actions(self, agent, observations, lanes, action_masks):
        parts = observations["x"] if isinstance(observations, dict) else observations
        return [float(np.sum(part)) + self.seeds[agent, lane] for part, lane in zip(parts, lanes, strict=True)]

    def probabilities(self):
        return [[0.25, 0.75]]


class OneByOne(InteractiveWorker):
    """A worker without support for lanes."""

    def init_agent(self, observation_space, action_space, seed, agent):
        pass

    def select_action(self, observation, agent, action_mask):
        return [observation, action_mask]

    def reset(self, seed):
        return 0, {}

    def step(self, action):
        return StepResult(action, 0, 0.0, False, False, {})


@pytest.fixture
def slots():
    made = Slots.create(4096)
    yield made
    made.remove()


def talk(worker, *requests):
    """Send requests; return the answers as a client reads them."""
    conversation = Conversation(worker)
    answers = [json.loads(encode(conversation.answer(encode(request)))) for request in requests]
    conversation.close()
    return answers


def init(**more):
    return {"cmd": "init_agent", "action_space": SPACE, "agent": "a", **more}


def begin(lane, seed):
    return {"cmd": "begin_episode", "agent": "a", "seed": seed, "episode": 3, "lane": lane}


def batch(observations, lanes=(0, 1), **more):
    return {"cmd": "select_actions", "agent": "a", "lanes": list(lanes), "observations": observations, **more}


def test_lanes_are_played_in_one_batch_in_every_form_of_arrays(slots):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    in_slot, _ = slots.put(rows, 64)
    where = {"path": slots.path, "size": slots.size}
    forms = [rows.tolist(), as_base64(rows), in_slot, {"x": in_slot}]
    first, *answers = talk(
        Counter(), init(lanes=2, slots=where), begin(0, 10), begin(1, 20), *(batch(form) for form in forms)
    )
    assert first == {"type": "agent_ready", "lanes": 2, "slots": True}
    assert [answer["type"] for answer in answers] == ["episode_ready"] * 2 + ["actions"] * 4
    assert all(answer["actions"] == [13.0, 32.0] for answer in answers[2:])


def test_a_request_with_the_same_bytes_is_answered_by_what_lies_in_shared_memory_now(slots):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    in_slot, _ = slots.put(rows, 64)
    conversation = Conversation(Counter())
    lines = [encode(init(lanes=2, slots={"path": slots.path, "size": slots.size})), encode(begin(0, 10))]
    lines += [encode(begin(1, 20)), line := encode(batch(in_slot))]
    assert [conversation.answer(each) for each in lines][-1]["actions"] == [13.0, 32.0]
    slots.put(10 * rows, 64)
    assert conversation.answer(line) == {"type": "actions", "actions": [40.0, 140.0]}
    conversation.answer(encode(init(lanes=1, slots={"path": slots.path, "size": slots.size})))
    assert "lane 1 is not one of the 1" in conversation.answer(line)["message"]
    conversation.close()


@pytest.mark.parametrize("more", [{}, {"lockstep": True}])
def test_requests_are_answered_however_their_bytes_arrive(more):
    ours, theirs = os.pipe()
    worker, answers, arrived = Counter(), [], threading.Semaphore(0)

    def send(answer):
        answers.append(answer)
        arrived.release()

    serving = threading.Thread(target=serve, args=(lambda: worker, ours, send))
    serving.start()
    question = encode({"cmd": "select_action", "agent": "a", "observation": [1, 2]})
    long = question + b" " * 200_000  # longer than a pipe holds, and than one read takes
    pieces = [encode(init(**more)) + b"\n", question[:9], question[9:] + b"\n\n" + question, b"\n", long, b"\n"]
    for piece, count in zip([*pieces, question], (1, 0, 1, 1, 0, 1, 0), strict=True):
        os.write(theirs, piece)
        assert all(arrived.acquire(timeout=30) for _ in range(count))
    os.close(theirs)  # the last request has no newline
    serving.join(30)
    os.close(ours)
    assert [answer.get("action", answer["type"]) for answer in answers] == ["agent_ready", 3.0, 3.0, 3.0, 3.0]
    assert worker.told == []  # how it is asked is not the worker's business


def test_looks_that_find_nothing_become_rarer(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    ours, theirs = os.pipe()
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    watch = CloseWatch()
    assert watch.look(poll) == []
    os.write(theirs, b"x")
    assert [bool(watch.look(poll)) for _ in range(3)] == [False, True, True]
    os.read(ours, 1)
    assert watch.look(poll) == []  # what was found has made such moments frequent again
    os.write(theirs, b"x")
    assert [bool(watch.look(poll)) for _ in range(2)] == [False, True]
    os.close(ours)
    os.close(theirs)


def test_one_action_is_a_batch_of_one_and_has_probabilities_if_they_are_asked_for():
    ask = {"cmd": "select_action", "agent": "a", "observation": {"x": [1, 2]}, "lane": 1}
    requests = [init(lanes=2), begin(1, 5), ask, {**ask, "probabilities": True}]
    *_, plain, more = talk(Counter(), *requests)
    assert plain == {"type": "action", "action": 8.0}
    assert more == {"type": "action", "action": 8.0, "probabilities": [0.25, 0.75]}


def test_a_worker_without_lanes_says_so_and_is_asked_one_by_one():
    answers = talk(
        OneByOne(),
        init(lanes=4),
        begin(0, 1),
        batch([[7]], [0]),
        batch([[7], [8]]),
        batch([[7]], [0], action_masks=[1]),
    )
    assert answers[0] == {"type": "agent_ready", "lanes": 0}
    assert [answer["type"] for answer in answers[1:]] == ["error", "actions", "error", "actions"]
    assert answers[2]["actions"] == [[[7], None]]
    assert answers[4]["actions"] == [[[7], 1]]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (batch([[1], [2], [3]]), "not those of 2 lanes"),
        (batch([[1]], [2]), "lane 2 is not one of the 2"),
        (batch([[1]], []), "is not a list of lanes"),
        (batch([[1]], [-1]), "is not a list of lanes"),
        ({"cmd": "select_actions", "agent": "a", "lanes": [0]}, "needs observations"),
        (batch({"slot": {"offset": 4090, "shape": [2, 4], "dtype": "<f4"}}), "is no array in 4096 bytes"),
        (batch({"slot": {"offset": -8, "shape": [2, 4], "dtype": "<f4"}}), "is no array in 4096 bytes"),
        (batch({"slot": {"offset": 0, "shape": [2, 4], "dtype": "nonsense"}}), "is no array in 4096 bytes"),
        (batch({"slot": {"offset": 0, "shape": [2, 4], "dtype": "O"}}), "is no array in 4096 bytes"),
        (batch({"slot": 3}), "is no array in 4096 bytes"),
        (batch({"b64": "AAA", "shape": [2], "dtype": "<f4"}), "b64: not an array"),
        (begin(5, 1), "lane 5 is not one of the 2"),
        ({"cmd": "begin_episode", "agent": "a"}, "begin_episode needs seed"),
        (init(slots={"path": "/nowhere", "size": 10}), "cannot be mapped"),
        (init(slots={"path": 3}), "is not allowed"),
        (init(lanes=0), "lanes 0 is not a whole number of 1 or more"),
    ],
)
def test_a_bad_request_is_named_and_the_conversation_goes_on(slots, request_, message):
    where = {"path": slots.path, "size": slots.size}
    _, bad, good = talk(Counter(), init(lanes=2, slots=where), request_, {"cmd": "ping"})
    assert bad["type"] == "error"
    assert message in bad["message"]
    assert good == {"type": "pong"}


def test_a_slot_needs_a_file():
    _, answer = talk(Counter(), init(), batch({"slot": {"offset": 0, "shape": [1], "dtype": "<f4"}}, [0]))
    assert "no file was named" in answer["message"]


@pytest.mark.parametrize("verb", ["cmd", "type", "command"])
def test_the_verbs_of_the_original_are_understood(verb):
    worker = Counter()
    answers = talk(
        worker,
        {verb: "init_agent", "player_id": "p", "action_space": SPACE, "game_name": "chess_v6"},
        {verb: "select_action", "player_id": "p", "observation": [2], "info": {"legal_moves": ["e4"]}},
        {verb: "ping"},
        {verb: "stop"},
    )
    assert [answer["type"] for answer in answers] == ["agent_ready", "action", "pong", "stopped"]
    assert worker.told == [("p", {"game_name": "chess_v6"}), ("p", {"info": {"legal_moves": ["e4"]}})]


def test_max_steps_of_a_reset_truncates_the_episode():
    step = {"cmd": "step", "action": 1}
    answers = talk(OneByOne(), {"cmd": "reset", "seed": 1, "max_steps": 2}, step, step, {"cmd": "reset"}, step)
    assert [answer.get("truncated") for answer in answers] == [None, False, True, None, False]


def test_a_checkpoint_is_put_where_the_worker_takes_it():
    template = {"extras.mode": "interactive", "extras.path": "{checkpoint}"}
    document = {"metadata": {"worker": {"config": {"extras": {"a": 1}}}}, "checkpoint": "/m.pt"}
    filled = with_checkpoint(document, "my", template)
    assert filled["metadata"]["worker"]["config"] == {"extras": {"a": 1, "mode": "interactive", "path": "/m.pt"}}
    bare = with_checkpoint({**document, "checkpoint": None}, "my", template)
    assert bare["metadata"]["worker"]["config"] == {"extras": {"a": 1, "mode": "interactive"}}
    assert with_checkpoint({"x": 1}, "my", template) == {"x": 1}
    with pytest.raises(ConfigError, match="plays no checkpoint"):
        with_checkpoint(document, "my", {})


@pytest.mark.parametrize(
    ("meanings", "noop"),
    [
        (["left", "right", "forward", "pickup", "drop", "toggle", "done"], 6),
        (["NOOP", "FIRE"], 0),
        (["up", "no_action", "done"], 1),
        (["push left", "stay-still"], 1),
        (["left", "right"], None),
        (None, None),
    ],
)
def test_the_action_that_does_nothing_is_found_by_its_name(meanings, noop):
    assert find_noop(meanings) == noop


class Slow(Counter):
    """Puts its answers off until it is told to give them, the last one first."""

    def __init__(self):
        super().__init__()
        self.put_off = []

    def introduction(self, agent):
        return {"decision_s": 5.0}

    def answer_later(self, agent, observation, lane, action_mask, facts, reply):
        self.put_off.append(lambda: reply({"type": "action", "action": lane, "facts": facts}))


def test_answers_that_are_put_off_come_in_any_order_and_carry_their_id():
    worker, later = Slow(), []
    conversation = Conversation(worker, later.append)
    ready = conversation.answer(encode(init(lanes=4)))
    assert ready == {"type": "agent_ready", "lanes": 4, "decision_s": 5.0, "asynchronous": True}
    for lane in range(2):
        conversation.answer(encode(begin(lane, 7)))
        ask = {"cmd": "select_action", "agent": "a", "lane": lane, "observation": [1.0], "id": 10 + lane, "step": 3}
        assert conversation.answer(encode(ask)) is None
    in_order = conversation.answer(encode({"cmd": "select_action", "agent": "a", "observation": [1.0]}))
    assert in_order == {"type": "action", "action": 8.0}, "a client that waits gets its answer at once"
    for answer in reversed(worker.put_off):
        answer()
    assert [(reply["id"], reply["action"]) for reply in later] == [(11, 1), (10, 0)]
    assert later[0]["facts"] == {"step": 3}
    conversation.close()
