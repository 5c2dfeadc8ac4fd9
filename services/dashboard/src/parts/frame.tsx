/** A canvas with the live frames of a run. It says when a stream has ended. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { askLastFrame, watchFrames, type LastFrame } from "../bus/frames";
import { now } from "../bus/states";
import type { FrameHead } from "../bus/types";
import { ago } from "./format";

/** Seconds without a frame after which a stream that should be live counts as dead. */
const DEAD_S = 10;
/** A stream that lives sends its newest frame at once; without one, the host is asked when there was one. */
const ASK_AFTER_MS = 1000;

export interface FrameProps {
  run: string;
  live: boolean;
  /** The host to ask for the time of the last frame if none comes: `framesHost(run)`. */
  host?: string | null;
  stream?: string | null;
  maxDim?: 160 | 320 | 640 | 1280;
  pauseMs?: number;
  /** What to say in place of a picture; empty to take no room for it. */
  nothing?: string;
  onFrame?: (head: FrameHead) => void;
}

export function Frame({ run, live, host = null, stream = null, maxDim = 320, pauseMs = 0, nothing, onFrame }: FrameProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const newest = useSignal<{ head: FrameHead; at: number } | null>(null);
  useEffect(() => {
    if (!live) return;
    return watchFrames(run, { stream, maxDim, pauseMs }, (head, picture, at) => {
      const target = canvas.current;
      if (!target) return;
      if (target.width !== picture.width || target.height !== picture.height) {
        target.width = picture.width;
        target.height = picture.height;
      }
      target.getContext("2d")?.drawImage(picture, 0, 0);
      target.dataset["frame"] = String(head.number);
      target.dataset["wall"] = String(head.wall);
      target.dataset["drawn"] = String(Date.now() / 1000);
      newest.value = { head, at: Math.max(at, newest.peek()?.at ?? 0) };
      onFrame?.(head);
    });
  }, [run, live, stream, maxDim, pauseMs]);
  const head = newest.value?.head ?? null;
  const told = useLastFrame(run, host, stream, live, head !== null);
  const at = newest.value?.at ?? told?.wall ?? null;
  const age = at === null ? 0 : now.value - at;
  const dead = at !== null && (!live || age > DEAD_S || (!head && told?.live === false));
  return (
    <div class={`frame ${dead ? "dead" : ""}`}>
      <canvas ref={canvas} role="img" aria-label={head ? `frame ${head.number} at step ${head.step}` : "no frame yet"} />
      {!head && <span class="note centre">{dead ? "No frame since this page was opened" : (nothing ?? (live ? "No frame yet" : "No live frames: the run has ended"))}</span>}
      {dead && (
        <span class="note" role="status">
          Last frame {ago(age)} ({new Date(at * 1000).toLocaleTimeString()})
        </span>
      )}
    </div>
  );
}

/** When the last frame was published, by the host of the run: a page that was opened later has seen none. */
function useLastFrame(run: string, host: string | null, stream: string | null, live: boolean, seen: boolean): LastFrame | null {
  const found = useSignal<LastFrame | null>(null);
  useEffect(() => {
    if (seen || host === null) return;
    const stop = new AbortController();
    const ask = () =>
      askLastFrame(run, host, stream, stop.signal).then(
        (answer) => (found.value = answer),
        () => {}, // the files of the run may be gone, and its host, too
      );
    const timer = window.setTimeout(() => void ask(), live ? ASK_AFTER_MS : 0);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [run, host, stream, live, seen]);
  return found.value;
}
