/** A session of manual mode: what its boards say, in order, and what is sent to them. */

import { computed, signal, type Signal } from "@preact/signals";
import { api, explain, Refusal } from "../bus/api";
import { follow } from "../bus/connection";
import type { RunDetail } from "../bus/types";
import { asCurl } from "../parts/command";

export interface Move {
  action: number;
  label: string;
  key?: string | null;
}

export interface Turn {
  operator: string;
  is_human: boolean;
  observation: unknown;
  legal_moves: Move[] | null;
}

export interface Moved {
  operator: string;
  action: unknown;
  label: string;
  probabilities: number[] | Record<string, number> | null;
  /** What an operator that thinks in words has said. */
  [more: string]: unknown;
}

export interface Board {
  name: string;
  status: string;
  agents: Record<string, string>;
  episode: number | null;
  seed: number | null;
  step: number;
  turns: Record<string, Turn>;
  /** The last turn that each agent had: what it saw. */
  seen: Record<string, Turn>;
  moved: Record<string, Moved>;
  /** The last move of each agent in this episode. */
  last: Record<string, Moved>;
  /** Agents that people play. */
  people: string[];
  /** The stream of its frames, if it has one. */
  stream: string;
  rewards: Record<string, number>;
  returns: Record<string, number>;
  waiting: string[];
  ended: string;
  winners: string[] | null;
  message: string;
  failures: { agent: string; operator: string; kind: string; message: string; then: string }[];
  /** It plays no more: an operator was refused or has failed. */
  dead: boolean;
}

/** Answers to requests that are no news of a board, newest last. */
export interface Answer {
  type: string;
  message?: string;
  label?: string;
  agent?: string;
}

const AGAIN_MS = 300;
const MOST_TRIES = 400;

function newBoard(name: string): Board {
  return {
    name, status: "starting", agents: {}, episode: null, seed: null, step: 0, turns: {}, seen: {}, moved: {}, last: {}, people: [], stream: name, rewards: {},
    returns: {}, waiting: [], ended: "", winners: null, message: "", failures: [], dead: false,
  };
}

/** The board after something was said of it. Pure. */
export function applied(before: Board, told: any): Board {
  const next: Board = { ...before, status: told.status, waiting: told.waiting ?? [] };
  if (told.status === "ready") {
    const agents: Record<string, string> = told.agents ?? {};
    const people = told.people ?? Object.keys(agents).filter((agent) => agents[agent]?.startsWith(PERSON));
    return { ...next, agents, people, stream: told.stream ?? before.stream };
  }
  if (told.status === "refused" || told.status === "failed") return { ...next, message: told.message ?? "", dead: true };
  if (told.status === "failure") {
    // The board goes on; what it did is told next.
    return { ...before, message: `${told.agent}: ${told.message}`, failures: [...before.failures, told].slice(-20) };
  }
  if (told.status === "over") {
    if (told.ended === undefined) return { ...next, status: before.status === "over" ? "over" : before.status, message: told.message ?? "" };
    return {
      ...next, turns: {}, moved: told.moved ?? {}, last: { ...before.last, ...(told.moved ?? {}) }, rewards: told.rewards ?? {}, returns: told.returns ?? {},
      step: told.length ?? before.step, ended: told.ended, winners: told.winners ?? null, message: "",
    };
  }
  const fresh = told.status === "reset";
  return {
    ...next, episode: told.episode, seed: told.seed, step: told.step, turns: told.turns ?? {},
    seen: { ...(fresh ? {} : before.seen), ...(told.turns ?? {}) }, moved: told.moved ?? {},
    last: { ...(fresh ? {} : before.last), ...(told.moved ?? {}) }, rewards: told.rewards ?? {},
    returns: told.returns ?? {}, ended: "", winners: null, message: fresh ? "" : before.message, failures: fresh ? [] : before.failures,
  };
}

export class Session {
  readonly boards: Signal<ReadonlyMap<string, Board>>;
  readonly answer: Signal<Answer | null> = signal(null);
  readonly problem = signal("");
  /** The last request, as a command that sends it. */
  readonly sent = signal("");
  readonly people = computed(() => [...this.boards.value.values()].filter((board) => board.waiting.length > 0));
  private next = 0;
  private number = 0;
  private ended = false;
  private readonly watch: { end(): void };

  constructor(readonly id: string) {
    this.boards = signal(new Map());
    void this.order();
    this.watch = follow({
      ask: () => ({ type: "watch_events", run: id, attempt: 1, kinds: ["reply"], start: this.next }),
      take: (message: { start: number; rows: { number: number; line: string }[]; next: number }) => {
        if (message.start !== this.next) return; // of the connection before; the watch was sent again
        this.next = message.next;
        this.read(message.rows.map((row) => row.line));
      },
    });
  }

  /** Show the boards in the order in which they were asked for, also before they say anything. */
  private async order(): Promise<void> {
    const detail = await api<RunDetail>("scheduler", "show", { run: this.id }).catch(() => null);
    const lineups = (detail?.spec.config["lineups"] ?? []) as { name: string }[];
    const now = this.boards.peek();
    this.boards.value = new Map([...lineups.map(({ name }): [string, Board] => [name, now.get(name) ?? newBoard(name)]), ...now]);
  }

  private read(lines: string[]): void {
    const boards = new Map(this.boards.peek());
    for (const line of lines) {
      const told = parsed(line)?.reply;
      if (!told) continue;
      if (told.type === "board") boards.set(told.board, applied(boards.get(told.board) ?? newBoard(told.board), told));
      else if (told.type !== "accepted" || told.label) this.answer.value = told;
    }
    this.boards.value = boards;
  }

  /** Send a request to the boards, as soon as the session listens. */
  async tell(request: Record<string, unknown>): Promise<void> {
    const line = { ...request, id: ++this.number };
    this.sent.value = asCurl("operator", "tell_session", { session: this.id, request });
    this.problem.value = "";
    this.answer.value = null;
    for (let tried = 0; tried < MOST_TRIES && !this.ended; tried++) {
      try {
        await api("operator", "tell_session", { session: this.id, request: line });
        return;
      } catch (error) {
        const early = error instanceof Refusal && (error.code === "not_started" || error.code === "unknown_attempt");
        if (!early) {
          this.problem.value = explain(error);
          return;
        }
        await new Promise((done) => window.setTimeout(done, AGAIN_MS));
      }
    }
  }

  /** Begin an episode on all boards; where a person plays, the board goes on by itself until it is their turn. */
  async reset(seed: string, rate: number): Promise<void> {
    await this.tell({ cmd: "reset", ...(/^\d+$/.test(seed) ? { seed: Number(seed) } : {}) });
    const own = this.boardsWithPeople();
    if (own.length) await this.tell({ cmd: "play", rate, boards: own });
  }

  boardsWithPeople(): string[] {
    return [...this.boards.peek().values()].filter((board) => board.people.length > 0).map((board) => board.name);
  }

  close(): void {
    this.ended = true;
    this.watch.end();
  }
}

/** Names of operators that are people begin with it. */
export const PERSON = "you";

function parsed(line: string): any {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}
