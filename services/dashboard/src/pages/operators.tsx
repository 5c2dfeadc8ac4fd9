/** Operators: policies, random agents and people side by side, stepped by hand. */

import "../styles/operators.css";
import "../styles/forms.css";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { api } from "../bus/api";
import { role } from "../bus/connection";
import { known, runs } from "../bus/states";
import { isFinal, type RunState } from "../bus/types";
import { Column } from "../operators/column";
import { Session } from "../operators/session";
import { Setup } from "../operators/setup";
import { keyOf, pressed } from "../operators/position";
import { Ago, StateBadge } from "../parts/badges";
import { CommandLine } from "../parts/command";
import { confirm } from "../parts/confirm";
import { Empty } from "../parts/empty";
import { query, setQuery } from "../router";

/** The group that the operator service gives to the runs of sessions. */
const SESSIONS = "sessions";

export function Operators() {
  const id = query.value.get("session");
  if (!known.value) return <p class="muted">Waiting for the first news …</p>;
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Operators</h1>
        <span class="muted">Who decides: a policy, a random agent, a person. Side by side, under the same seed.</span>
      </div>
      {id ? <OpenSession key={id} id={id} /> : <Begin />}
    </div>
  );
}

function Begin() {
  const open = [...runs.value.values()].filter((run) => run.group === SESSIONS && !isFinal(run));
  return (
    <>
      {role.value === "owner" ? <Setup /> : <Empty command="mosaic play tictactoe_v3 --with random">You may watch sessions and not open any.</Empty>}
      {open.length > 0 && (
        <section class="card" aria-label="Open sessions">
          <h2>Open sessions</h2>
          <ul class="plain-list">
            {open.map((run) => (
              <li key={run.run} class="row">
                <a href={`/operators?session=${run.run}`}>{run.name}</a> <StateBadge state={run.state} /> <Ago at={run.submitted_at} />
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function OpenSession({ id }: { id: string }) {
  const session = useMemo(() => new Session(id), [id]);
  useEffect(() => () => session.close(), [session]);
  const run = runs.value.get(id);
  const boards = [...session.boards.value.values()];
  const live = !!run && !isFinal(run);
  useKeys(session);
  return (
    <>
      {role.value === "owner" && live && <Controls session={session} run={run} />}
      {!live && (
        <p class="row">
          {run ? <>This session has ended ({run.state}): {run.reason}</> : <>There is no session {id}, or it ended long ago.</>}{" "}
          <a class="button" href="/operators">
            New session
          </a>
        </p>
      )}
      {boards.length === 0 && live && (
        <p class="muted" role="status">
          The session is {run.state}: {run.reason}
        </p>
      )}
      {session.problem.value && (
        <p class="error" role="alert">
          {session.problem.value}
        </p>
      )}
      <Answered session={session} />
      <div class="columns">
        {boards.map((board) => (
          <Column key={board.name} session={session} board={board} live={live} />
        ))}
      </div>
    </>
  );
}

function Answered({ session }: { session: Session }) {
  const told = session.answer.value;
  if (!told) return null;
  if (told.type === "error") {
    return (
      <p class="error" role="alert">
        {told.message}
      </p>
    );
  }
  if (told.type === "confirm") return <p role="status">{told.label}? Repeat the move to confirm.</p>;
  return null;
}

/** While exactly one board waits for a person, its keys work wherever the focus is. */
function useKeys(session: Session): void {
  useEffect(() => {
    const take = (event: KeyboardEvent) => {
      const people = session.people.peek();
      const busy = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement || event.target instanceof HTMLTextAreaElement;
      if (people.length !== 1 || event.defaultPrevented || busy || event.ctrlKey || event.metaKey || event.altKey) return;
      const board = people[0];
      const agent = board?.waiting[0];
      const move = agent && board?.turns[agent]?.legal_moves?.find((each) => keyOf(each) === pressed(event));
      if (!board || !agent || !move) return;
      event.preventDefault();
      void session.tell({ cmd: "human_input", action: move.action, board: board.name, agent });
    };
    window.addEventListener("keydown", take);
    return () => window.removeEventListener("keydown", take);
  }, [session]);
}

function Controls({ session, run }: { session: Session; run: RunState }) {
  const seed = useSignal("7");
  const steps = useSignal("10");
  const rate = useSignal("4");
  const agent = useSignal("");
  const boards = [...session.boards.value.values()];
  const agents = [...new Set(boards.flatMap((board) => Object.keys(board.agents)))];
  const begun = boards.some((board) => board.episode !== null);
  const count = (text: string, fallback: number) => (Number(text) > 0 ? Number(text) : fallback);
  const stop = () =>
    confirm({
      title: "End this session",
      text: "Its boards and their operators are stopped. What was played stays in the run's journal.",
      command: `mosaic cancel ${run.run.slice(-8)}`,
      action: "End session",
      danger: true,
      run: async () => {
        await api("operator", "close_session", { session: session.id });
        setQuery({ session: null });
      },
    });
  const number = (label: string, value: { value: string }, width: number) => (
    <label class="row">
      {label}
      <input inputMode="numeric" style={{ width: `${width}px` }} value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} />
    </label>
  );
  return (
    <section class="card controls" aria-label="Controls of all boards">
      <div class="row">
        <StateBadge state={run.state} title={run.reason} />
        {number("seed", seed, 72)}
        <button type="button" class={begun ? "" : "primary"} id="reset" disabled={!boards.length} onClick={() => void session.reset(seed.value, count(rate.value, 4))}>
          Reset
        </button>
        <button type="button" id="step" disabled={!begun} onClick={() => void session.tell({ cmd: "step" })}>
          Step
        </button>
        <span class="row">
          {number("n", steps, 56)}
          <button type="button" disabled={!begun} onClick={() => void session.tell({ cmd: "step", n: Math.round(count(steps.value, 1)) })}>
            Step n
          </button>
        </span>
        {agents.length > 1 && (
          <span class="row">
            <label class="row">
              player
              <select value={agent.value || agents[0]} onChange={(event) => (agent.value = event.currentTarget.value)}>
                {agents.map((each) => (
                  <option key={each} value={each}>
                    {each}
                  </option>
                ))}
              </select>
            </label>
            <button type="button" disabled={!begun} onClick={() => void session.tell({ cmd: "step", agent: agent.value || agents[0] })}>
              Step player
            </button>
          </span>
        )}
        <span class="row">
          {number("steps/s", rate, 56)}
          <button type="button" id="play" disabled={!begun} onClick={() => void session.tell({ cmd: "play", rate: count(rate.value, 4) })}>
            Play
          </button>
          <button type="button" id="pause" disabled={!begun} onClick={() => void session.tell({ cmd: "pause" })}>
            Pause
          </button>
        </span>
        <button type="button" class="danger last" onClick={stop}>
          End session
        </button>
      </div>
      <p class="muted sent">
        {session.sent.value ? (
          <>
            Sent: <CommandLine command={session.sent.value} label="the call that was sent" />
          </>
        ) : (
          "Reset begins an episode on every board, under one seed. Where a person plays, the game goes on by itself until it is their turn."
        )}
      </p>
    </section>
  );
}
