/** One board: its picture or position, what each agent saw, chose and got, and the moves of a person. */

import { useSignal } from "@preact/signals";
import { Frame } from "../parts/frame";
import { figure } from "../parts/format";
import { keyName, keyOf, positionOf, pressed, type Position } from "./position";
import type { Board, Moved, Session, Turn } from "./session";

const MOST_BUTTONS = 48;
const WORDS: Record<string, string> = {
  starting: "starting", ready: "ready: press Reset", reset: "new episode", step: "playing", waiting_for_human: "your turn",
  over: "over", refused: "refused", failed: "failed",
};

export function Column({ session, board, live }: { session: Session; board: Board; live: boolean }) {
  const position = positionOf(board);
  const play = (agent: string, action: unknown) => void session.tell({ cmd: "human_input", action, board: board.name, agent });
  const mover = board.waiting[0];
  const onKeyDown = (event: KeyboardEvent) => {
    if (!mover || event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const found = board.turns[mover]?.legal_moves?.find((move) => keyOf(move) === pressed(event));
    if (!found) return;
    event.preventDefault();
    event.stopPropagation();
    play(mover, found.action);
  };
  return (
    <section
      class={`card column ${board.dead ? "dead" : ""} ${mover ? "mine" : ""}`}
      aria-label={`board ${board.name}`}
      data-board={board.name}
      data-status={board.status}
      data-step={board.step}
      tabIndex={mover ? 0 : -1}
      onKeyDown={onKeyDown}
    >
      <div class="head">
        <h2 class="ellipsis" title={board.name}>{board.name}</h2>
        <span class={`badge board-${board.dead ? "dead" : board.status}`}>{WORDS[board.status] ?? board.status}</span>
      </div>
      {position ? <Drawn position={position} board={board} play={play} /> : <Frame run={session.id} live={live && !board.dead} stream={board.stream} maxDim={640} />}
      <p class="muted number counters">
        {board.episode === null ? "no episode yet" : `episode ${board.episode} · seed ${board.seed} · step ${board.step}`}
      </p>
      {board.ended && <Ending board={board} />}
      {board.message && (
        <p class="error" role="alert">
          {board.message}
        </p>
      )}
      {mover && <Moves turn={board.turns[mover] as Turn} agent={mover} play={(action) => play(mover, action)} />}
      <div class="agents">
        {Object.keys({ ...board.agents }).map((agent) => (
          <Agent key={agent} agent={agent} board={board} />
        ))}
      </div>
    </section>
  );
}

function Ending({ board }: { board: Board }) {
  const won = board.winners === null ? "" : board.winners.length ? ` · won by ${board.winners.map((agent) => `${agent} (${board.agents[agent] ?? "?"})`).join(", ")}` : " · a draw";
  return (
    <p role="status">
      <b>Episode over: {board.ended}</b>
      {won}
    </p>
  );
}

function Drawn({ position, board, play }: { position: Position; board: Board; play: (agent: string, action: number) => void }) {
  const mover = board.waiting[0];
  const legal = new Set((mover ? board.turns[mover]?.legal_moves ?? [] : []).map((move) => move.action));
  const marks = position.game === "tictactoe" ? ["", "X", "O"] : ["", "●", "●"];
  const place = (i: number, j: number) => (position.game === "tictactoe" ? `row ${i + 1}, column ${j + 1}` : `column ${j + 1}, row ${i + 1}`);
  return (
    <div class={`position ${position.game}`} role="group" aria-label={`${position.game}, ${position.players[0]} is ${marks[1] || "first"}, ${position.players[1]} is ${marks[2] || "second"}`}>
      {position.rows.flatMap((row, i) =>
        row.map((cell, j) => {
          const can = legal.has(cell.action) && (cell.owner === 0 || position.game === "connect_four");
          const said = `${place(i, j)}: ${cell.owner ? position.players[cell.owner - 1] : "free"}`;
          return (
            <button
              key={`${i} ${j}`}
              type="button"
              class={`cell owner-${cell.owner} ${cell.last ? "last" : ""} ${can ? "can" : ""}`}
              aria-label={can ? `play ${said}` : said}
              disabled={!can}
              onClick={() => mover && play(mover, cell.action)}
            >
              {marks[cell.owner]}
            </button>
          );
        }),
      )}
    </div>
  );
}

function Moves({ turn, agent, play }: { turn: Turn; agent: string; play: (action: unknown) => void }) {
  const typed = useSignal("");
  const legal = turn.legal_moves;
  const send = (event: Event) => {
    event.preventDefault();
    const text = typed.value.trim();
    if (!text) return;
    play(text.startsWith("[") ? JSON.parse(text) : text);
    typed.value = "";
  };
  return (
    <div class="moves" role="group" aria-label={`legal moves of ${agent}`}>
      <p>
        <b>Your move as {agent}.</b> <span class="muted">{legal ? "Click, or press the key." : "Numbers in brackets, such as [0.5]."}</span>
      </p>
      {legal && legal.length <= MOST_BUTTONS ? (
        <div class="row">
          {legal.map((move) => (
            <button key={move.action} type="button" class="small move" data-action={move.action} onClick={() => play(move.action)}>
              {move.label} {keyOf(move) && <kbd>{keyName(keyOf(move))}</kbd>}
            </button>
          ))}
        </div>
      ) : (
        <form class="row" onSubmit={send}>
          <input aria-label="move" list={`moves-${agent}`} value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
          <datalist id={`moves-${agent}`}>{(legal ?? []).map((move) => <option key={move.action} value={move.label} />)}</datalist>
          <button type="submit">Play</button>
        </form>
      )}
    </div>
  );
}

function Agent({ agent, board }: { agent: string; board: Board }) {
  const moved = board.last[agent];
  const seen = board.turns[agent] ?? board.seen[agent];
  return (
    <dl class="facts" data-agent={agent}>
      <dt>{agent}</dt>
      <dd>
        <b>{board.agents[agent]}</b>
      </dd>
      <dt>return</dt>
      <dd class="number">
        {figure(board.returns[agent] ?? 0)} <span class="muted">last reward {figure(board.rewards[agent] ?? 0)}</span>
      </dd>
      <dt>action</dt>
      <dd>{moved ? <Chosen moved={moved} legal={seen?.legal_moves ?? null} /> : <span class="muted">–</span>}</dd>
      <dt>sees</dt>
      <dd class="seen">{seen ? summary(seen.observation) : <span class="muted">–</span>}</dd>
    </dl>
  );
}

function Chosen({ moved, legal }: { moved: Moved; legal: Turn["legal_moves"] }) {
  const given = moved.probabilities;
  const all = Array.isArray(given) ? given.map((value, i): [string, number] => [legal?.find((move) => move.action === i)?.label ?? String(i), value]) : Object.entries(given ?? {});
  const shown = all.filter(([, value]) => value > 0.001).sort((a, b) => b[1] - a[1]).slice(0, 6);
  const words = typeof moved["said"] === "string" ? moved["said"] : undefined;
  return (
    <>
      <b>{moved.label}</b>
      {shown.length > 0 && (
        <ul class="chances">
          {shown.map(([name, value]) => (
            <li key={name}>
              <span class="ellipsis">{name}</span>
              <span class="track">
                <span style={{ width: `${100 * value}%` }} />
              </span>
              <span class="number">{(100 * value).toFixed(1)} %</span>
            </li>
          ))}
        </ul>
      )}
      {words && <blockquote>{words}</blockquote>}
    </>
  );
}

/** An observation in a line: numbers, or what it is. */
function summary(observation: unknown): string {
  if (observation === null || observation === undefined) return "–";
  if (typeof observation === "string") return observation;
  if (typeof observation === "number") return figure(observation);
  if (Array.isArray(observation)) {
    const shape: number[] = [];
    for (let inner: unknown = observation; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
    if (shape.length === 1 && observation.length <= 12) return `[${observation.map((each) => (typeof each === "number" ? figure(each) : String(each))).join(", ")}]`;
    const flat = observation.flat(8).filter((each): each is number => typeof each === "number");
    return `${shape.join("×")} numbers from ${figure(Math.min(...flat))} to ${figure(Math.max(...flat))}`;
  }
  const map = observation as Record<string, unknown>;
  if (Array.isArray(map["shape"]) && map["dtype"]) return `${(map["shape"] as number[]).join("×")} ${String(map["dtype"])}`;
  return Object.entries(map).map(([key, value]) => `${key}: ${summary(value)}`).join(" · ");
}
