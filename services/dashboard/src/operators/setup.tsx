/** Who plays what: an environment and up to eight boards, each with one operator, or one against another. */

import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../bus/api";
import { allRuns, summaryOf, wantAllRuns } from "../bus/all_runs";
import { describe, profiles } from "../forms/workers";
import { asCurl, CommandLine, quote } from "../parts/command";
import { setQuery } from "../router";
import { PERSON } from "./session";

const MOST_BOARDS = 8;
const GAMES: Record<string, [string, string]> = {
  tictactoe: ["player_1", "player_2"],
  connect_four: ["player_0", "player_1"],
  chess: ["player_0", "player_1"],
  rps: ["player_0", "player_1"],
  gin_rummy: ["player_0", "player_1"],
  texas_holdem: ["player_0", "player_1"],
  texas_holdem_no_limit: ["player_0", "player_1"],
  go: ["black_0", "white_0"],
};
const SUGGESTED = ["CartPole-v1", "tictactoe_v3", "connect_four_v3", "chess_v6", "LunarLander-v3", "MiniGrid-Empty-5x5-v0", "simple_spread_v3"];

export function playersOf(environment: string): [string, string] | null {
  const name = /(?:.*[./])?([a-z][a-z0-9_]*)_v\d+$/.exec(environment)?.[1];
  return (name && GAMES[name]) || null;
}

interface Row {
  /** random, noop, human, run:NAME@best, or JSON of an operator's entry. */
  first: string;
  second: string;
}

const environment = signal("tictactoe_v3");
const rows = signal<Row[]>([{ first: "human", second: "random" }]);

export function Setup() {
  const busy = useSignal(false);
  const problem = useSignal("");
  useEffect(() => wantAllRuns(), []);
  const players = playersOf(environment.value);
  const set = (index: number, change: Partial<Row>) => (rows.value = rows.value.map((row, i) => (i === index ? { ...row, ...change } : row)));
  const open = async () => {
    busy.value = true;
    try {
      const made = await api<{ session: string }>("operator", "open_session", { experiment: await experimentOf(environment.value, rows.value), frames: "single" });
      setQuery({ session: made.session }, { replace: false });
    } catch (error) {
      problem.value = explain(error);
    }
    busy.value = false;
  };
  return (
    <section class="card" aria-label="New session">
      <h2>New session</h2>
      <div class="fields session-form">
        <div class="field open">
          <label for="session-env">environment</label>
          <input id="session-env" list="session-envs" value={environment.value} onInput={(event) => (environment.value = event.currentTarget.value.trim())} />
          <datalist id="session-envs">
            {suggestions().map((each) => (
              <option key={each} value={each} />
            ))}
          </datalist>
          <span class="help">{players ? `A game of ${players.join(" and ")}` : "Each board has one operator for all agents"}</span>
        </div>
      </div>
      <ol class="board-rows">
        {rows.value.map((row, i) => (
          <li key={i} class="row">
            <span class="muted">Board {i + 1}</span>
            <OperatorChoice label={players ? players[0] : "operator"} value={row.first} choose={(first) => set(i, { first })} />
            {players && <OperatorChoice label={players[1]} value={row.second} choose={(second) => set(i, { second })} />}
            <button type="button" class="small" aria-label={`Remove board ${i + 1}`} disabled={rows.value.length < 2} onClick={() => (rows.value = rows.value.filter((_, j) => j !== i))}>
              Remove
            </button>
          </li>
        ))}
      </ol>
      <div class="row">
        <button type="button" class="primary" id="open-session" disabled={busy.value || !environment.value} onClick={() => void open()}>
          {busy.value ? "Opening …" : "Open session"}
        </button>
        <button type="button" disabled={rows.value.length >= MOST_BOARDS} onClick={() => (rows.value = [...rows.value, { first: "random", second: "random" }])}>
          Add a board
        </button>
        <span class="muted">{rows.value.length} of at most {MOST_BOARDS}, side by side, under the same seed</span>
      </div>
      {problem.value && (
        <p class="error" role="alert">
          {problem.value}
        </p>
      )}
      <SessionCommand />
    </section>
  );
}

function suggestions(): string[] {
  const known = profiles.value.filter((row) => row.installed).flatMap((row) => describe(row.worker, row.profile)?.description?.environments ?? []);
  return [...new Set([...SUGGESTED, ...known])].slice(0, 400);
}

function OperatorChoice({ label, value, choose }: { label: string; value: string; choose: (value: string) => void }) {
  const own = !["random", "noop", "human"].includes(value);
  const saved = allRuns.value.filter((run) => summaryOf(run.run)?.checkpoint).slice(0, 50);
  const references = saved.flatMap((run) => [`run:${run.name}@best`, `run:${run.name}@last`]);
  const kind = own ? "other" : value;
  return (
    <>
      <label class="row">
        {label}
        <select value={kind} onChange={(event) => choose(event.currentTarget.value === "other" ? (references[0] ?? "run:NAME@best") : event.currentTarget.value)}>
          <option value="random">random</option>
          <option value="noop">passive (does nothing)</option>
          <option value="human">a person</option>
          <option value="other">a checkpoint, or another operator …</option>
        </select>
      </label>
      {own && (
        <input
          class="reference"
          aria-label={`${label}: reference of a checkpoint, or an operator's fields as JSON`}
          title='run:NAME@best, run:NAME@last, run:NAME@STEP, or JSON such as {"worker": "baseline", "behavior": "random"}'
          list="session-references"
          value={value}
          onInput={(event) => choose(event.currentTarget.value)}
        />
      )}
      <datalist id="session-references">
        {[...new Set(references)].map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
    </>
  );
}

/** The fields of an experiment that opens the session. */
async function experimentOf(env: string, boards: Row[]): Promise<object> {
  const operators: Record<string, Promise<unknown>> = {};
  const taken = new Set<string>();
  const players = playersOf(env);
  const lineups = boards.map((row, i) => {
    const words = players ? [row.first, row.second] : [row.first];
    const plain = words.map((word) => shortName(word));
    // Each person is somebody else, and two boards with the same names would be one.
    const twice = taken.has(plain.join(" "));
    taken.add(plain.join(" "));
    const names = words.map((word, seat) => (twice || (word === "human" && PERSON in operators) ? `${plain[seat]}-${i + 1}` : (plain[seat] as string)));
    names.forEach((name, seat) => (operators[name] = entryOf(words[seat] as string)));
    return players ? { [players[0]]: names[0], [players[1]]: names[1] } : { "*": names[0] };
  });
  const entries = await Promise.all(Object.entries(operators).map(async ([name, entry]) => [name, await entry]));
  return { name: "play", environment: { id: env }, operators: Object.fromEntries(entries), lineups };
}

function shortName(word: string): string {
  if (word === "human") return PERSON;
  if (word.startsWith("run:")) return word.slice(4).replace(/[^\w-]+/g, "-").slice(0, 50);
  return word.startsWith("{") ? `operator-${word.replace(/\W+/g, "").slice(0, 20)}` : word;
}

/** An operator's entry. The worker of a checkpoint is that of the run that saved it. */
async function entryOf(word: string): Promise<Record<string, unknown>> {
  if (word === "human" || word === "random" || word === "noop") return { worker: word };
  if (word.startsWith("{")) return JSON.parse(word);
  const name = /^run:(.+?)(@\w+)?$/.exec(word)?.[1] ?? "";
  const { run } = await api<{ run: { worker: string; profile: string } }>("scheduler", "show", { run: name });
  return { worker: run.worker, profile: run.profile, checkpoint: word };
}

/** `mosaic play` where it opens the same boards; else the call that the page makes. */
function SessionCommand() {
  const played = playCommand(environment.value, rows.value);
  const fields = useSignal<object | null>(null);
  useEffect(() => {
    if (played) return;
    let ended = false;
    experimentOf(environment.value, rows.value).then(
      (experiment) => !ended && (fields.value = { experiment, frames: "single" }),
      () => !ended && (fields.value = null), // a reference that is not typed to its end
    );
    return () => void (ended = true);
  }, [played, environment.value, rows.value]);
  if (played) return <CommandLine command={played} />;
  return fields.value && <CommandLine command={asCurl("operator", "open_session", fields.value)} label="the call that opens this session" />;
}

/** `mosaic play` seats a person at one board, or lets each operator play a board of its own, in all seats. */
function playCommand(env: string, boards: Row[]): string | null {
  const players = playersOf(env);
  const seats = boards.map((row) => (players ? [row.first, row.second] : [row.first]));
  const words = seats.flat();
  if (words.some((word) => word.startsWith("{")) || words.filter((word) => word === "human").length > 1) return null;
  if (!words.includes("human")) {
    if (seats.some((row) => new Set(row).size > 1)) return null;
    return `mosaic play ${quote(env)} --watch ${seats.map((row) => `--with ${quote(row[0] as string)}`).join(" ")}`;
  }
  const [only, ...others] = seats;
  if (!only || others.length) return null;
  if (!players) return `mosaic play ${quote(env)}`;
  const mine = only.indexOf("human");
  return `mosaic play ${quote(env)} --as ${players[mine]} --with ${quote(only[1 - mine] as string)}`;
}
