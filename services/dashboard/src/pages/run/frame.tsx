/** The live picture of a run, with its reward and return. */

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { framesHost } from "../../bus/frames";
import { now } from "../../bus/states";
import type { FrameHead, RunState } from "../../bus/types";
import { count, figure } from "../../parts/format";
import { Frame } from "../../parts/frame";

/** Seconds without a frame after which there is no rate to tell. */
const STILL_S = 3;

export function RunFrame({ run, live }: { run: RunState; live: boolean }) {
  const head = useSignal<FrameHead | null>(null);
  const rate = useSignal(0);
  const drawn = useSignal(0);
  const window_ = useRef({ since: 0, frames: 0 });
  const onFrame = (frame: FrameHead) => {
    head.value = frame;
    drawn.value = Date.now() / 1000;
    const at = performance.now();
    const { since, frames } = window_.current;
    if (at - since > 1000) {
      rate.value = since ? (1000 * frames) / (at - since) : 0;
      window_.current = { since: at, frames: 1 };
    } else window_.current.frames += 1;
  };
  return (
    <section class="card run-frame" aria-label="Live frame">
      <div class="head">
        <h2>Live frame</h2>
        <span class="spread" />
        {live && rate.value > 0 && now.value - drawn.value < STILL_S && <span class="muted number">{Math.round(rate.value)} fps</span>}
      </div>
      <Frame
        run={run.run}
        host={framesHost(run)}
        live={live}
        maxDim={640}
        onFrame={onFrame}
        nothing={live ? "No frame yet. A run has frames if its config says so (fastlane_video_mode)." : "The run has ended: see Videos."}
      />
      {head.value && (
        <p class="row number" id="frame-figures">
          <span title="Steps of the environment in the picture. A run counts those of all its environments.">environment step {count(head.value.step)}</span>
          <span>episode {count(head.value.episode)}</span>
          <span>reward {figure(head.value.last_reward)}</span>
          <span>return {figure(head.value.rolling_return)}</span>
        </p>
      )}
    </section>
  );
}
