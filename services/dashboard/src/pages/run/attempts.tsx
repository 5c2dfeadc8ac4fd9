/** The attempts of a run: where each ran, and how it ended. */

import type { RunDetail, RunState } from "../../bus/types";
import { Ago } from "../../parts/badges";
import { span } from "../../parts/format";

interface Attempt {
  attempt: number;
  host: string | null;
  phase: string;
  outcome: string | null;
  started_at: number | null;
  ended_at: number | null;
  resume: { path: string; step: number | null } | null;
  exit: { code: number | null; signal: number | null; reason: string; max_rss_mb: number } | null;
}

export function Attempts({ run, detail }: { run: RunState; detail: RunDetail | null }) {
  const all = (detail?.attempts ?? []) as unknown as Attempt[];
  if (!all.length) return <p class="muted">It was not placed on a host yet: {run.reason}</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Attempts">
      <table>
        <thead>
          <tr>
            {["Attempt", "Host", "Outcome", "Began", "Took", "Exit", "Most memory", "Resumed from", "Reason"].map((title) => (
              <th key={title} scope="col">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {all.map((each) => (
            <tr key={each.attempt}>
              <td class="number">{each.attempt}</td>
              <td>{each.host ?? "–"}</td>
              <td>{each.outcome ?? each.phase}</td>
              <td>
                <Ago at={each.started_at} />
              </td>
              <td class="number">{each.started_at && each.ended_at ? span(each.ended_at - each.started_at) : "–"}</td>
              <td class="number">{each.exit ? (each.exit.signal ? `signal ${each.exit.signal}` : (each.exit.code ?? "–")) : "–"}</td>
              <td class="number">{each.exit ? `${Math.round(each.exit.max_rss_mb)} MB` : "–"}</td>
              <td>{each.resume ? `step ${each.resume.step ?? "?"}` : "–"}</td>
              <td>{each.exit?.reason ?? ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {run.next_attempt_at && run.state === "queued" && (
        <p>
          The next attempt may begin at {new Date(run.next_attempt_at * 1000).toLocaleTimeString()} ({run.reason}).
        </p>
      )}
    </div>
  );
}
