/** The files of a run: videos to look at, everything else to download. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../../bus/api";
import { isFinal, type RunDetail, type RunState } from "../../bus/types";
import { Ago } from "../../parts/badges";
import { bytes, count } from "../../parts/format";
import { Table, type Column } from "../../parts/table";

interface FileEntry {
  path: string;
  bytes: number;
  modified_at: number;
}

const VIDEO = /\.(mp4|webm)$/i;
const SHOWN = /\.(png|jpe?g|gif|webp|txt|log|json|jsonl|csv|yaml)$/i;
/** As many as a host lists at once. */
const MOST_FILES = 10_000;
const MOST_VIDEOS = 24;

/** The address of a file; a path begins with the number of the attempt. */
export function fileAddress(run: string, path: string): string {
  return `/files/${run}/${path.split("/").map(encodeURIComponent).join("/")}`;
}

export function Files({ run, detail, kind }: { run: RunState; detail: RunDetail | null; kind: "videos" | "artifacts" }) {
  const found = useSignal<FileEntry[] | null>(null);
  const more = useSignal(false);
  const problems = useSignal<string[]>([]);
  const hosts = [...new Set((detail?.attempts ?? []).map((each) => each["host"]).filter((host) => typeof host === "string"))];
  const key = hosts.join();
  useEffect(() => {
    if (!detail) return;
    const ask = (host: string) => api<{ files: FileEntry[]; more: boolean }>(`supervisor.${host}`, "files", { run: run.run, limit: MOST_FILES });
    // Attempts may be on several hosts, and one that is silent hides no files but its own.
    void Promise.allSettled(hosts.map(ask)).then((answers) => {
      const told = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
      found.value = told.flatMap((answer) => answer.files);
      more.value = told.some((answer) => answer.more);
      problems.value = answers.flatMap((answer, i) => (answer.status === "rejected" ? [`${hosts[i]}: ${explain(answer.reason)}`] : []));
    });
  }, [run.run, run.state, key]);
  if (!found.value) return <p class="muted">Asking the host …</p>;
  const videos = found.value.filter((file) => VIDEO.test(file.path));
  return (
    <div class="stack">
      {problems.value.map((each) => (
        <p class="error" key={each}>
          {each}
        </p>
      ))}
      {more.value && <p class="muted">The run has more files than these {count(found.value.length)}: the others are in its folder on the host.</p>}
      {kind === "videos" ? <Videos run={run} videos={videos} /> : <Artifacts run={run} files={found.value} />}
    </div>
  );
}

function Videos({ run, videos }: { run: RunState; videos: FileEntry[] }) {
  if (!videos.length) {
    const said = isFinal(run) ? "This run recorded no video." : "No video yet. A run records some if its config says so (record).";
    return <p class="muted">{said}</p>;
  }
  const newest = [...videos].sort((a, b) => b.modified_at - a.modified_at).slice(0, MOST_VIDEOS);
  return (
    <div class="grid">
      {newest.map((file) => (
        <figure class="tile" key={file.path}>
          <video controls preload="metadata" src={`${fileAddress(run.run, file.path)}?show`} />
          <figcaption class="row">
            <span class="ellipsis" title={file.path}>
              {file.path}
            </span>
            <Ago at={file.modified_at} />
          </figcaption>
        </figure>
      ))}
    </div>
  );
}

function Artifacts({ run, files }: { run: RunState; files: FileEntry[] }) {
  const columns: Column<FileEntry>[] = [
    { key: "path", title: "File", width: 380, cell: (file) => <a href={fileAddress(run.run, file.path)} download>{file.path}</a>, hover: (file) => file.path },
    { key: "bytes", title: "Size", right: true, width: 90, cell: (file) => bytes(file.bytes) },
    { key: "modified", title: "Changed", width: 120, cell: (file) => <Ago at={file.modified_at} /> },
    {
      key: "show",
      title: "View",
      width: 80,
      cell: (file) => SHOWN.test(file.path) && <a href={`${fileAddress(run.run, file.path)}?show`} target="_blank" rel="noopener">show<span class="visually-hidden"> {file.path} in a new tab</span></a>,
    },
  ];
  return <Table label="Files of the run" rows={files} columns={columns} keyOf={(file) => file.path} height="420px" empty={<p class="empty">No files.</p>} />;
}
