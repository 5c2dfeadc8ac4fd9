/** Why a run waits, runs there, was stopped, retried or failed: the answer first, then what was decided. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../../bus/api";
import type { RunState, WhyResult } from "../../bus/types";
import { Ago } from "../../parts/badges";
import { CommandLine } from "../../parts/command";

export function Why({ run }: { run: RunState }) {
  const found = useSignal<WhyResult | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    api<WhyResult>("scheduler", "why", { run: run.run }).then(
      (answer) => (found.value = answer),
      (error) => (problem.value = explain(error)),
    );
  }, [run.run, run.version]);
  const why = found.value;
  if (!why) return <p class={problem.value ? "error" : "muted"}>{problem.value || "Asking the scheduler …"}</p>;
  return (
    <div class="stack" id="why">
      <p class="answer">{why.answer}</p>
      {why.facts.length > 0 && (
        <ul>
          {why.facts.map((fact) => (
            <li key={fact}>{fact}</li>
          ))}
        </ul>
      )}
      {why.log.length > 0 && (
        <div>
          <h3>End of its log</h3>
          <pre class="lines" tabIndex={0} role="region" aria-label="end of the log">
            {why.log.join("\n")}
          </pre>
        </div>
      )}
      <div>
        <h3>What was decided</h3>
        <table>
          <tbody>
            {why.decisions.map((decision, i) => (
              <tr key={i}>
                <td class="when">
                  <Ago at={decision.at} />
                </td>
                <td>{decision.event}</td>
                <td>{decision.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <CommandLine command={`mosaic why ${run.run}`} />
    </div>
  );
}
