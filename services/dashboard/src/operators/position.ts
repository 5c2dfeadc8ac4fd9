/** Boards of games that the page draws itself, from what the player to move sees. Pure. */

import type { Board } from "./session";

export interface Cell {
  /** 0 if it is empty, 1 for the first player, 2 for the second. */
  owner: 0 | 1 | 2;
  /** The action that plays here. */
  action: number;
  /** It was played last. */
  last: boolean;
}

export interface Position {
  game: "tictactoe" | "connect_four";
  players: [string, string];
  rows: Cell[][];
}

const SHAPES: Record<string, { game: Position["game"]; rows: number; columns: number }> = {
  "3x3x2": { game: "tictactoe", rows: 3, columns: 3 },
  "6x7x2": { game: "connect_four", rows: 6, columns: 7 },
};

/** The position of a board, if it is a game that is drawn here; null otherwise. */
export function positionOf(board: Board): Position | null {
  const players = Object.keys(board.agents).sort();
  if (players.length !== 2) return null;
  const turn = Object.entries(board.turns)[0] ?? latest(board, players);
  if (!turn) return null;
  const planes = planesOf(turn[1].observation);
  const shape = planes && SHAPES[`${planes.length}x${planes[0]?.length}x${planes[0]?.[0]?.length}`];
  if (!planes || !shape) return null;
  const mover = players.indexOf(turn[0]);
  const ownerAt = (i: number, j: number): Cell["owner"] => {
    const cell = planes[i]?.[j];
    const plane = cell?.[0] ? 0 : cell?.[1] ? 1 : -1;
    return plane < 0 ? 0 : ((((mover + plane) % 2) + 1) as 1 | 2);
  };
  const rows = Array.from({ length: shape.rows }, (_, row) =>
    Array.from({ length: shape.columns }, (_, column): Cell => {
      // Tic-tac-toe counts its cells column by column, and gives the columns first.
      if (shape.game === "tictactoe") return { owner: ownerAt(column, row), action: column * 3 + row, last: false };
      return { owner: ownerAt(row, column), action: column, last: false };
    }),
  );
  const position: Position = { game: shape.game, players: players as [string, string], rows };
  markMoves(position, board);
  return position;
}

/** When the game is over nobody is to move: the last one who was saw the board before the last move. */
function latest(board: Board, players: string[]): [string, Board["seen"][string]] | null {
  const mover = Object.keys(board.moved)[0] ?? players[0] ?? "";
  const seen = board.seen[mover];
  return seen ? [mover, seen] : null;
}

function markMoves(position: Position, board: Board): void {
  for (const [agent, moved] of Object.entries(board.moved)) {
    const owner = (position.players.indexOf(agent) + 1) as 1 | 2;
    const column = position.rows.flatMap((row) => row.filter((cell) => cell.action === moved.action));
    const over = board.status === "over";
    // In a column the lowest free cell is taken; the highest taken one was played last.
    const played = over ? column.findLast((cell) => !cell.owner) : column.find((cell) => cell.owner);
    if (!played || !owner) continue;
    played.owner = owner;
    played.last = true;
  }
}

function planesOf(observation: unknown): number[][][] | null {
  const found = observation && typeof observation === "object" && "observation" in observation ? (observation as { observation: unknown }).observation : observation;
  const deep = Array.isArray(found) && Array.isArray(found[0]) && Array.isArray(found[0][0]) && found[0][0].length === 2;
  return deep ? (found as number[][][]) : null;
}

const NAMES: Record<string, string> = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", " ": "space" };
const SIGNS: Record<string, string> = { left: "←", right: "→", up: "↑", down: "↓" };

/** The name of a pressed key, as moves name theirs. */
export function pressed(event: KeyboardEvent): string {
  return NAMES[event.key] ?? event.key.toLowerCase();
}

/** The key that plays a move: its own, an arrow that its name suggests, or its number. */
export function keyOf(move: { action: number; label: string; key?: string | null }): string {
  if (move.key) return move.key;
  const words = move.label.toLowerCase().split(/\W+/);
  const side = Object.keys(SIGNS).find((each) => words.includes(each));
  return side ?? (move.action >= 0 && move.action <= 9 ? String(move.action) : "");
}

export function keyName(key: string): string {
  return SIGNS[key] ?? key;
}
