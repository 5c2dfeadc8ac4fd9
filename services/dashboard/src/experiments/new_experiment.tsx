/** Start an experiment: the text of its file, what a start would play, and the command that does the same. */

import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain, Refusal, type Problem } from "../bus/api";
import { CommandLine, Copy } from "../parts/command";
import { count } from "../parts/format";
import { navigate } from "../router";

const EXAMPLE = `name: my-experiment
environment: {id: CartPole-v1}
operators:
  random: {worker: random}
  passive: {worker: noop}
  # trained: {worker: cleanrl, checkpoint: run:NAME@best}
episodes: 50
seeds: {mode: procedural, root: 0}
`;
const CHECK_AFTER_MS = 400;

interface Plan {
  experiment: string;
  wanted: number;
  done: number;
  missing: number;
  shards: unknown[];
  notes: string[];
}

interface Check {
  ok: boolean;
  plan: Plan | null;
  problems: Problem[];
}

const text = signal(EXAMPLE);

export function NewExperiment({ open }: { open: boolean }) {
  const plan = useSignal<Plan | null>(null);
  const problems = useSignal<string[]>([]);
  const busy = useSignal(false);
  useEffect(() => {
    const stop = new AbortController();
    const check = async () => {
      try {
        const found = await api<Check>("operator", "check_experiment", { text: text.value }, stop.signal);
        plan.value = found.plan;
        problems.value = found.problems.map(inWords);
      } catch (error) {
        if (stop.signal.aborted) return;
        plan.value = null;
        problems.value = wordsOf(error);
      }
    };
    const timer = window.setTimeout(() => void check(), CHECK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text.value]);
  const start = async () => {
    busy.value = true;
    try {
      const command = `mosaic eval ${plan.value?.experiment}.yaml`;
      await api("operator", "start_experiment", { text: text.value, command });
      navigate(`/experiment/${plan.value?.experiment}`);
    } catch (error) {
      problems.value = wordsOf(error);
    }
    busy.value = false;
  };
  return (
    <details class="card" open={open || undefined}>
      <summary>New experiment</summary>
      <div class="stack new-experiment">
        <label for="experiment-text" class="muted">
          The text of an experiment file: which operators play which episodes of which environment
        </label>
        <textarea id="experiment-text" rows={14} spellcheck={false} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
        {problems.value.map((each) => (
          <p class="error" role="alert" key={each}>
            {each}
          </p>
        ))}
        <div class="row">
          <button type="button" class="primary" id="start-experiment" disabled={!plan.value || busy.value || !plan.value.missing} onClick={() => void start()}>
            {busy.value ? "Starting …" : "Start experiment"}
          </button>
          {plan.value && (
            <span role="status" id="plan">
              {plan.value.missing
                ? `Plays ${count(plan.value.missing)} episodes in ${plan.value.shards.length} shards`
                : "All its episodes have been played"}
              {plan.value.done > 0 && `; ${count(plan.value.done)} are there already`}
            </span>
          )}
          <Copy text={text.value} />
        </div>
        {plan.value?.notes.map((note) => (
          <p class="muted" key={note}>
            {note}
          </p>
        ))}
        <CommandLine command={`mosaic eval ${plan.value?.experiment ?? "experiment"}.yaml`} />
      </div>
    </details>
  );
}

function inWords(problem: Problem): string {
  return problem.field ? `${problem.field}: ${problem.message}` : problem.message;
}

function wordsOf(error: unknown): string[] {
  const problems = error instanceof Refusal ? (error.details.problems ?? []) : [];
  return problems.length ? problems.map(inWords) : [explain(error)];
}
