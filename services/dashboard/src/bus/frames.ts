/** Live pictures of a run. Each is decoded off the main thread; credits go back when it is drawn. */

import { api } from "./api";
import { follow } from "./connection";
import { isFinal, type FrameHead, type RunState } from "./types";

export interface FrameWish {
  stream?: string | null;
  maxDim?: 160 | 320 | 640 | 1280;
  /** Time to ask for nothing after each picture: many small ones need not move like a film. */
  pauseMs?: number;
}

/** The host that knows about the frames of a run: the one on which it runs, or has run. */
export function framesHost(run: RunState): string | null {
  const begun = run.state === "running" || (isFinal(run) && run.started_at !== null);
  return begun ? run.host : null;
}

export interface LastFrame {
  /** Time of the last frame, by the clock of its host. */
  wall: number;
  /** Whether its writer may publish more. */
  live: boolean;
}

/** Ask for the last frame of a run, or of one of its streams; null if there is none. */
export async function askLastFrame(run: string, host: string, stream: string | null, signal: AbortSignal): Promise<LastFrame | null> {
  type Stream = { newest: { stream: string; wall: number }; writer: string };
  const found = await api<{ streams: Stream[] }>(`supervisor.${host}`, "frame_streams", { run }, signal);
  const own = found.streams.filter((each) => stream === null || each.newest.stream === stream);
  if (!own.length) return null;
  return { wall: Math.max(...own.map((each) => each.newest.wall)), live: own.some((each) => each.writer === "live") };
}

/** Call a function with every new picture, and the time at which it was published. */
export function watchFrames(
  run: string,
  { stream = null, maxDim = 320, pauseMs = 0 }: FrameWish,
  draw: (head: FrameHead, picture: ImageBitmap, at: number) => void,
): () => void {
  const newest = new Map<string, number>();
  let ended = false;
  let timer = 0;
  let watch: { end(): void } | null = null;
  const begin = () => {
    watch = follow({ ask: () => ({ type: "watch_frames", run, stream, max_dim: maxDim }), take });
  };
  const take = async (head: FrameHead, jpeg: Uint8Array<ArrayBuffer> | null) => {
    if (!jpeg || ended) return;
    if (pauseMs && watch) {
      watch.end();
      watch = null;
      timer = window.setTimeout(begin, pauseMs);
    }
    const picture = await createImageBitmap(new Blob([jpeg], { type: "image/jpeg" })).catch(() => null);
    if (!picture) return;
    const before = newest.get(head.stream);
    // Pictures are decoded side by side: an older one must not replace a newer one. The last one of a stream that stands
    // still comes again and again, and is no news.
    if (!ended && (before === undefined || head.wall > before)) {
      newest.set(head.stream, head.wall);
      // The first one may be old. Of all others the arrival tells the time: the clock of the host may differ.
      const now = Date.now() / 1000;
      draw(head, picture, before === undefined ? Math.min(now, head.wall) : now);
    }
    picture.close();
  };
  begin();
  return () => {
    ended = true;
    clearTimeout(timer);
    watch?.end();
  };
}
