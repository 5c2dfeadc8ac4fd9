/** Delete an experiment that is not being played, after a question. */

import { api } from "../bus/api";
import { role } from "../bus/connection";
import { confirm } from "../parts/confirm";
import { forget, isPlaying, type ExperimentState } from "./data";

interface Deleted {
  deleted: boolean;
  runs: { kept: { name: string; reason: string }[] };
}

export function DeleteButton({ state, done = () => {}, small = false }: { state: ExperimentState; done?: () => void; small?: boolean }) {
  if (role.value !== "owner" || isPlaying(state)) return null;
  const name = state.experiment;
  const ask = () =>
    confirm({
      title: `Delete ${name}?`,
      text: "Its records, its report and videos, and the runs of its shards go too. This cannot be undone.",
      command: `mosaic experiments delete ${name}`,
      action: "Delete for ever",
      danger: true,
      run: async () => {
        const result = await api<Deleted>("operator", "delete_experiment", { experiment: name });
        const kept = result.runs.kept.map((each) => `${each.name}: ${each.reason}`);
        if (!result.deleted) throw new Error(`Kept: ${kept.join("; ")}`);
        forget(name);
        done();
      },
    });
  return (
    <button type="button" class={small ? "danger small" : "danger"} onClick={ask}>
      Delete<span class="visually-hidden"> {name}</span> …
    </button>
  );
}
