/** The log of an attempt: its end first, then live by number, and earlier lines on demand. It keeps only so many lines. */

import { signal, type Signal } from "@preact/signals";
import { api } from "./api";
import { follow } from "./connection";
import type { LogRow, Rows } from "./types";

const TAIL = 500;
const PAGE = 2000;
/** Lines that are kept of a log that grows; those that were asked for by hand come on top. */
export const MOST_LINES = 5000;

export interface LogWatch {
  readonly rows: Signal<LogRow[]>;
  /** Load lines before the first one. */
  earlier(): Promise<void>;
  end(): void;
}

/** Follow a log from its end, or from its beginning if the attempt has not begun: the store does not know it yet. */
export function watchLog(run: string, attempt: number | null, begun: boolean): LogWatch {
  const rows = signal<LogRow[]>([]);
  let next = 0;
  let most = MOST_LINES;
  let ended = false;
  let watch: { end(): void } | null = null;

  const begin = async () => {
    const tail = begun && await api<Rows<LogRow>>("telemetry", "logs", { run, attempt, tail: TAIL }).catch(() => null);
    if (ended) return;
    if (tail && tail.rows.length) {
      rows.value = tail.rows;
      next = (tail.rows.at(-1) as LogRow).number + 1;
    }
    watch = follow({
      ask: () => ({ type: "watch_log", run, attempt, start: next }),
      take: (message: { start: number; rows: LogRow[]; next: number }) => {
        if (message.start !== next) return; // of the connection before; the watch was sent again
        next = message.next;
        rows.value = [...rows.value, ...message.rows].slice(-most);
      },
    });
  };
  void begin();
  return {
    rows,
    earlier: async () => {
      const first = rows.value[0]?.number ?? 0;
      if (!first) return;
      const start = Math.max(0, first - PAGE);
      const page = await api<Rows<LogRow>>("telemetry", "logs", { run, attempt, start, limit: first - start });
      const now = rows.value[0]?.number ?? first; // lines may have come and gone meanwhile
      rows.value = [...page.rows.filter((row) => row.number < now), ...rows.value];
      most = Math.max(most, rows.value.length);
    },
    end: () => {
      ended = true;
      watch?.end();
    },
  };
}
