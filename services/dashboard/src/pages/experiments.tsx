/** Experiments: all that were played or are being played, and a new one. */

import "../styles/compare.css";
import "../styles/experiments.css";
import { role } from "../bus/connection";
import { asked, experiments, problem, useExperiments } from "../experiments/data";
import { DeleteButton } from "../experiments/delete";
import { NewExperiment } from "../experiments/new_experiment";
import { Ago, StateBadge } from "../parts/badges";
import { Empty } from "../parts/empty";
import { count } from "../parts/format";
import { Progress } from "../parts/meter";

export function Experiments() {
  useExperiments();
  const rows = [...experiments.value.values()].sort((a, b) => b.started_at - a.started_at);
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Experiments</h1>
        <span class="muted">Operators play the same seeded episodes, in shards on all hosts.</span>
      </div>
      {problem.value && (
        <p class="error" role="alert">
          {problem.value}
        </p>
      )}
      {role.value === "owner" && <NewExperiment open={asked.value && !rows.length} />}
      {asked.value && !rows.length && !problem.value && (
        <Empty command="mosaic eval configs/experiments/baselines.yaml">No experiment yet. Start one above, or with</Empty>
      )}
      {rows.length > 0 && (
        <section class="card scroll" aria-label="All experiments">
          <table>
            <thead>
              <tr>
                <th scope="col">Experiment</th>
                <th scope="col">State</th>
                <th scope="col">Episodes</th>
                <th scope="col">Lineups</th>
                <th scope="col">Started</th>
                <th scope="col">
                  <span class="visually-hidden">Delete</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.experiment} data-experiment={row.experiment}>
                  <td>
                    <a href={`/experiment/${row.experiment}`}>{row.experiment}</a>
                  </td>
                  <td>
                    <StateBadge state={row.state} title={row.reason} />
                  </td>
                  <td class="number episodes">
                    {count(row.done)} of {count(row.wanted)}
                    <Progress part={row.wanted ? row.done / row.wanted : 0} label={`episodes of ${row.experiment}`} />
                  </td>
                  <td class="number">{row.lineups.length}</td>
                  <td>
                    <Ago at={row.started_at} />
                  </td>
                  <td class="right">
                    <DeleteButton state={row} small />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </div>
  );
}
