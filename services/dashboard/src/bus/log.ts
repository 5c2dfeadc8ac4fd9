/** The log of an attempt: its end first, then live by number, and earlier lines on demand. */

import { signal, type Signal } from "@preact/signals";
import { api } from "./api";
import { follow } from "./connection";
import type { LogRow, Rows } from "./types";

const TAIL = 500;
const PAGE = 2000;

export interface LogWatch {
  readonly rows: Signal<LogRow[]>;
  /** Load lines before the first one. */
  earlier(): Promise<void>;
  end(): void;
}

export function watchLog(run: string, attempt: number | null): LogWatch {
  const rows = signal<LogRow[]>([]);
  let next = 0;
  let ended = false;
  let watch: { end(): void } | null = null;

  const begin = async () => {
    const tail = await api<Rows<LogRow>>("telemetry", "logs", { run, attempt, tail: TAIL }).catch(() => null);
    if (ended) return;
    if (tail?.rows.length) {
      rows.value = tail.rows;
      next = (tail.rows.at(-1) as LogRow).number + 1;
    }
    watch = follow({
      ask: () => ({ type: "watch_log", run, attempt, start: next }),
      take: (message: { start: number; rows: LogRow[]; next: number }) => {
        if (message.start !== next) return; // of the connection before; the watch was sent again
        next = message.next;
        rows.value = [...rows.value, ...message.rows];
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
      rows.value = [...page.rows.filter((row) => row.number < first), ...rows.value];
    },
    end: () => {
      ended = true;
      watch?.end();
    },
  };
}
