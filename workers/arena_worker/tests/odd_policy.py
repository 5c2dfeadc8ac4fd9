"""A policy in a process of its own that goes wrong on demand: in given episodes, at a given decision."""

import os
import threading
import time
from pathlib import Path

import numpy as np

from mosaic_worker import InteractiveWorker, WorkerCapabilities, WorkerConfig, WorkerMetadata, run_worker
from mosaic_worker.errors import RequestError

MEETING = Path("..")
"""The folder that all operators of a shard share."""


class OddConfig(WorkerConfig):
    fault: str = ""
    episodes: tuple[int, ...] = ()
    at: int = 3
    once: bool = False
    refuses: str = ""
    drifts: str = ""
    thinks_s: float | None = None


class Odd(InteractiveWorker):
    """Acts by the parity of its decisions, so that what it does depends on the whole episode."""

    def __init__(self, context):
        self.config = context.config
        self.lanes = {}
        self.failed = set()

    def init_agent(self, observation_space, action_space, seed, agent):
        if self.config.refuses:
            raise RequestError(self.config.refuses)

    def begin_episode(self, agent, seed, episode, lane):
        if self.config.fault == "no beginning" and episode in self.config.episodes:
            os._exit(7)
        if self.config.fault == "raised" and episode in self.config.episodes and self.config.at < 0:
            raise RequestError("no episode today")
        self.lanes[agent, lane] = [episode, seed, 0]

    def select_actions(self, agent, observations, lanes, action_masks):
        decided = [self.decide(agent, lane, len(lanes), row) for row, lane in enumerate(lanes)]
        if action_masks is None:
            return decided
        pairs = zip(decided, action_masks, strict=True)
        return [each if each == 99 else int(np.flatnonzero(mask)[0]) for each, mask in pairs]

    def decide(self, agent, lane, rows, row):
        state = self.lanes[agent, lane]
        episode, seed, count = state
        state[2] += 1
        config = self.config
        # Episode 0 is also that of the probe, which must not find anything.
        if episode in config.episodes and count >= config.at and not (config.once and episode in self.failed):
            self.failed.add(episode)
            if config.fault == "raised":
                raise RuntimeError("the sky fell")
            if config.fault == "died":
                os._exit(7)
            if config.fault == "hung":
                time.sleep(3600)
            if config.fault == "illegal":
                return 99
            if config.fault == "leaves" and not (MEETING / "leaving").exists():
                # It answers, and dies while another thinks.
                (MEETING / "leaving").write_text(str(os.getpid()))
                threading.Thread(target=self.leave).start()
            if config.fault == "waits":
                self.outlive()
            if config.fault == "slow":
                time.sleep(1)
        if config.drifts == "size":  # as if rounding depended on the size of a batch
            return (seed + count + rows) % 2
        if config.drifts == "row":
            return (seed + count + row) % 2
        return (seed + count) % 2

    def leave(self):
        wait_for((MEETING / "thinking").exists)
        os._exit(7)

    def outlive(self):
        (MEETING / "thinking").touch()
        leaving = int((MEETING / "leaving").read_text())
        wait_for(lambda: not Path(f"/proc/{leaving}").exists())


class Slow(Odd):
    """Answers in its own time, with words and a report; its first answer is none. It wants to see pictures."""

    def introduction(self, agent):
        return {"decision_s": 200, "wants": ["picture"]}

    def answer_later(self, agent, observation, lane, action_mask, facts, reply):
        state = self.lanes[agent, lane]
        state[2] += 1
        answer = {"said": f"step {facts['step']} of {list(facts['picture'].shape)}", "report": {"calls": state[2]}}
        if state[2] == 1:
            reply(answer | {"type": "error", "kind": "no_answer", "message": "the model said nothing"})
            return
        answer |= {"type": "action", "action": 1}
        threading.Timer(self.config.thinks_s, lambda: reply(answer)).start()


def wait_for(holds):
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


def make(context):
    return Odd(context) if context.config.thinks_s is None else Slow(context)


def metadata():
    capabilities = WorkerCapabilities(
        worker_type="odd", interactive_commands=("init_agent", "begin_episode", "select_actions")
    )
    return WorkerMetadata(name="odd", version="1", config_model=OddConfig, capabilities=capabilities, example_config={})


if __name__ == "__main__":
    run_worker(metadata(), run=lambda context: None, interactive=make)
