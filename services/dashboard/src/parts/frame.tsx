/** A canvas with the live frames of a run. It says when a stream has ended. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { watchFrames } from "../bus/frames";
import { now } from "../bus/states";
import type { FrameHead } from "../bus/types";
import { ago } from "./format";

/** Seconds without a frame after which a stream that should be live counts as dead. */
const DEAD_S = 10;

export interface FrameProps {
  run: string;
  live: boolean;
  stream?: string | null;
  maxDim?: 160 | 320 | 640 | 1280;
  pauseMs?: number;
  /** What to say in place of a picture; empty to take no room for it. */
  nothing?: string;
  onFrame?: (head: FrameHead) => void;
}

export function Frame({ run, live, stream = null, maxDim = 320, pauseMs = 0, nothing, onFrame }: FrameProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  // With the time of its arrival here: the clock of its host may differ.
  const newest = useSignal<{ head: FrameHead; at: number } | null>(null);
  useEffect(() => {
    if (!live) return;
    return watchFrames(run, { stream, maxDim, pauseMs }, (head, picture) => {
      const target = canvas.current;
      if (!target) return;
      if (target.width !== picture.width || target.height !== picture.height) {
        target.width = picture.width;
        target.height = picture.height;
      }
      target.getContext("2d")?.drawImage(picture, 0, 0);
      target.dataset["frame"] = String(head.number);
      target.dataset["wall"] = String(head.wall);
      const at = Date.now() / 1000;
      target.dataset["drawn"] = String(at);
      newest.value = { head, at };
      onFrame?.(head);
    });
  }, [run, live, stream, maxDim, pauseMs]);
  const head = newest.value?.head ?? null;
  const at = newest.value?.at ?? 0;
  const age = now.value - at;
  const dead = head !== null && (!live || age > DEAD_S);
  return (
    <div class={`frame ${dead ? "dead" : ""}`}>
      <canvas ref={canvas} role="img" aria-label={head ? `frame ${head.number} at step ${head.step}` : "no frame yet"} />
      {!head && <span class="note centre">{nothing ?? (live ? "No frame yet" : "No live frames: the run has ended")}</span>}
      {dead && head && (
        <span class="note" role="status">
          Last frame {ago(age)} ({new Date(at * 1000).toLocaleTimeString()})
        </span>
      )}
    </div>
  );
}
