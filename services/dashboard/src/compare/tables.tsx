/** The numbers of a comparison: one row per setting, and one per run. */

import type { RunState } from "../bus/types";
import { StateBadge } from "../parts/badges";
import { Mark } from "../parts/curves";
import { figure, shortId } from "../parts/format";
import type { Style } from "../parts/palette";
import type { Collected } from "./data";
import { download, toCsv } from "./figure";
import { shortNames, text, valueAt, type Setting } from "./folding";
import { iqm, iqmInterval, mean, median, tInterval, type Interval } from "./statistics";

/** Below this number of seeds an interval says little. */
const FEW_SEEDS = 5;

interface Row {
  setting: Setting;
  scores: number[];
}

export function SettingTable(props: {
  settings: Setting[];
  collected: Collected;
  styles: ReadonlyMap<string, Style>;
  names: ReadonlyMap<string, string>;
  paths: string[];
  metric: string;
}) {
  const { settings, collected, styles, names, paths, metric } = props;
  const rows = settings
    .map((setting): Row => ({ setting, scores: setting.runs.flatMap((run) => (collected.scores.has(run) ? [collected.scores.get(run) as number] : [])) }))
    .sort((a, b) => (b.scores.length ? mean(b.scores) : -Infinity) - (a.scores.length ? mean(a.scores) : -Infinity));
  const few = rows.filter((row) => row.scores.length < FEW_SEEDS).length;
  const short = shortNames(paths);
  const save = () => {
    const head = ["setting", ...paths.map((path) => short.get(path)), "n", "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high", "median"];
    const body = rows.filter((row) => row.scores.length).map(({ setting, scores }) => {
      const [t, b] = [tInterval(scores), iqmInterval(scores)];
      return [setting.label, ...paths.map((path) => setting.values[path]), scores.length, mean(scores), t?.[0], t?.[1], iqm(scores), b?.[0], b?.[1], median(scores)];
    });
    download("compare.csv", toCsv([head, ...body]), "text/csv");
  };
  return (
    <section class="card" aria-label="Settings">
      <div class="head">
        <h2>Settings</h2>
        <span class="muted">{metric}: mean of the last 100 of each run; 95 % intervals over training seeds</span>
        <span class="spread" />
        <button type="button" class="small" onClick={save}>
          CSV
        </button>
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="table of settings">
        <table id="settings">
          <thead>
            <tr>
              <th scope="col">Setting</th>
              <th scope="col" class="right">n</th>
              <th scope="col" class="right">Mean</th>
              <th scope="col">95 % interval</th>
              <th scope="col" class="right">IQM</th>
              <th scope="col">95 % interval</th>
              <th scope="col" class="right">Median</th>
              <th scope="col">Runs</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <SettingRow key={row.setting.label} row={row} style={styles.get(row.setting.label)} names={names} />
            ))}
          </tbody>
        </table>
      </div>
      {few > 0 && rows.some((row) => row.scores.length > 1) && (
        <p class="muted">
          Fewer than {FEW_SEEDS} seeds in {few} of {rows.length} settings: their intervals say little.
        </p>
      )}
    </section>
  );
}

function between(interval: Interval): string {
  return interval ? `[${figure(interval[0])}, ${figure(interval[1])}]` : "–";
}

function SettingRow({ row, style, names }: { row: Row; style: Style | undefined; names: ReadonlyMap<string, string> }) {
  const { setting, scores } = row;
  const has = scores.length > 0;
  return (
    <tr>
      <td>
        {style && <Mark {...style} />}
        {setting.label}
      </td>
      <td class="right number">{scores.length}</td>
      <td class="right number">{has ? figure(mean(scores)) : "–"}</td>
      <td class="number">{between(tInterval(scores))}</td>
      <td class="right number">{has ? figure(iqm(scores)) : "–"}</td>
      <td class="number">{between(iqmInterval(scores))}</td>
      <td class="right number">{has ? figure(median(scores)) : "–"}</td>
      <td>
        {setting.runs.slice(0, 12).map((run) => (
          <a key={run} class="member" href={`/run/${run}`} title={names.get(run)}>
            {shortId(run)}
          </a>
        ))}
        {setting.runs.length > 12 && <span class="muted">+{setting.runs.length - 12}</span>}
      </td>
    </tr>
  );
}

export function RunTable({ chosen, collected, paths, metric }: { chosen: RunState[]; collected: Collected; paths: string[]; metric: string }) {
  const short = shortNames(paths);
  const shown = paths.slice(0, 10);
  const value = (run: string, path: string) => {
    const spec = collected.specs.get(run);
    return spec ? valueAt(spec, path) : undefined;
  };
  return (
    <details class="card">
      <summary>All {chosen.length} runs with their values</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="table of runs">
        <table>
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col">State</th>
              {shown.map((path) => (
                <th scope="col" key={path} title={path}>
                  {short.get(path)}
                </th>
              ))}
              <th scope="col">seed</th>
              <th scope="col" class="right">{metric}</th>
            </tr>
          </thead>
          <tbody>
            {chosen.map((run) => (
              <tr key={run.run}>
                <td>
                  <a href={`/run/${run.run}`}>{run.name}</a>
                </td>
                <td>
                  <StateBadge state={run.state} />
                </td>
                {shown.map((path) => (
                  <td key={path} class="number">
                    {value(run.run, path) === undefined ? "–" : text(value(run.run, path))}
                  </td>
                ))}
                <td class="number">{text(value(run.run, "config.seed") ?? "–")}</td>
                <td class="right number">{figure(collected.scores.get(run.run))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
