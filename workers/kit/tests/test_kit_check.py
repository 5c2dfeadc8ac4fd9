"""The compliance suite passes a good worker and names the faults of a bad one."""

import json

import pytest

ALL = {
    *("entry-point", "metadata", "describe", "dry-run-accepts", "dry-run-refuses", "config-forms", "bad-config", "run"),
    *(
        "same-seed",
        "prints",
        "sigterm",
        "resume",
        "interactive",
        "interactive-env",
        "interactive-agent",
        "interactive-lanes",
    ),
}

DEAF = "    signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(4)\n"


def check(run_module, folder, *arguments, **settings):
    done = run_module("mosaic_worker.check", folder, "tiny", "--json", *arguments, **settings)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return {result["id"]: result for result in report["checks"]}


def failed(results):
    return {name for name, result in results.items() if result["status"] == "fail"}


@pytest.mark.slow
def test_a_good_worker_passes(variant, run_module):
    # Slow the worker down a little, so that there is time to stop it.
    results = check(
        run_module,
        variant(code={"        context.stop.check()\n": "        context.stop.check(); time.sleep(0.002)\n"}),
        MOSAIC_HEARTBEAT_S="0.0005",  # frequent heartbeats, as in a slow run
    )
    assert set(results) == ALL
    assert {name: result["status"] for name, result in results.items() if result["status"] != "pass"} == {
        "interactive-agent": "skip",
        "interactive-lanes": "skip",
    }


@pytest.mark.slow
def test_the_report_for_people_has_a_line_for_each_check(site, run_module):
    done = run_module("mosaic_worker.check", site, "nobody")
    assert done.returncode == 1
    assert "fail  entry-point" in done.stdout
    assert "0 entry points named 'nobody'" in done.stdout
    assert done.stdout.splitlines()[-1] == "nobody: 0 passed, 1 failed, 15 skipped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected", "reason"),
    [
        ({"import atexit": "print('banner')\nimport atexit"}, {"describe", "run"}, "not JSON"),
        ({"dice = random.Random(config.seed)": "dice = random"}, {"same-seed"}, "the first that differ"),
        (
            {"    for episode in range": f"{DEAF}    for episode in range"},
            {"sigterm"},
            "still running",
        ),
        (
            {'emitter.run_started(config.run_id, "tiny", seed=config.seed)': ""},
            {"run"},
            "run_started was written 0 times",
        ),
        (
            {"score, length=1": "score, length='long'"},
            {"run"},
            "length: Input should be a valid integer",
        ),
        ({'{"episodes": 300, "seed": 5}': '{"episods": 300}'}, {"metadata"}, "episods: unknown field"),
        ({"emitter.checkpoint_loaded(context.resume.path, step=first)": "first = 0"}, {"resume"}, "checkpoint_loaded"),
        ({"if episode >= first:": "if True:"}, {"resume"}, "but the resumed run reports step 1"),
        ({'(context.run_dir / "saved").write_text(str(episode + 1))': "pass"}, {"resume"}, "saves no checkpoint"),
        ({"return [seed or 0], {}": "return [time.time()], {}"}, {"interactive-env"}, "different answers"),
    ],
)
def test_a_fault_fails_its_check(variant, run_module, code, expected, reason):
    # Only the worker that ignores SIGTERM reaches its timeout; the others must not, even on a busy machine.
    timeout = "3" if expected == {"sigterm"} else "60"
    results = check(run_module, variant(code=code), "--timeout", timeout, *(f"--only={name}" for name in expected))
    assert expected <= failed(results)
    assert any(reason in results[name]["reason"] for name in expected)


@pytest.mark.slow
def test_prints_that_reach_stdout_fail_the_check(variant, run_module):
    # This worker undoes the kit's protection: it points descriptor 1 back at the journal, before anything can print.
    started = 'emitter.run_started(config.run_id, "tiny", seed=config.seed)'
    undo = {started: f"os.dup2(emitter.fd, 1); {started}; time.sleep(0.5)"}
    results = check(run_module, variant(code=undo), "--only=prints")
    assert results["prints"]["status"] == "fail"
    assert "reached stdout" in results["prints"]["reason"]


@pytest.mark.slow
def test_an_example_that_ends_too_quickly_is_skipped_with_advice(variant, run_module):
    results = check(
        run_module, variant(code={'"episodes": 300': '"episodes": 0'}), "--only=same-seed", "--only=sigterm"
    )
    assert results["same-seed"]["status"] == "skip"
    assert results["sigterm"]["status"] in {"skip", "pass"}  # the signal may still arrive in time
    assert failed(results) == set()
