/** The chart of a comparison as a picture to keep: the same drawing as SVG or on a canvas. */

import type { Line } from "../parts/curve";
import { figure } from "../parts/format";
import { resolveColour } from "../parts/palette";

const WIDTH = 960;
const HEIGHT = 540;
const EDGE = { left: 70, right: 20, top: 40, bottom: 50 };

type Point = [number, number];
type Mark =
  | { kind: "line"; points: Point[]; colour: string; width: number; alpha: number; dash: number[] }
  | { kind: "area"; points: Point[]; colour: string; alpha: number }
  | { kind: "text"; at: Point; text: string; colour: string; size: number; align: "start" | "middle" | "end" };

export interface Drawing {
  title: string;
  xLabel: string;
  yLabel: string;
  lines: Line[];
}

/** Everything that is drawn, in order. */
function marks({ title, xLabel, yLabel, lines }: Drawing): Mark[] {
  const ink = resolveColour("var(--text)");
  const grey = resolveColour("var(--muted)");
  const rule = resolveColour("var(--line)");
  const numbers = (pick: (line: Line) => (number | null)[]) => lines.flatMap(pick).filter((each): each is number => each !== null && Number.isFinite(each));
  const xs = numbers((line) => line.x);
  const ys = numbers((line) => [...line.y, ...line.low, ...line.high]);
  const [x0, x1] = range(xs);
  const [y0, y1] = range(ys);
  const at = (x: number, y: number): Point => [
    EDGE.left + ((x - x0) / (x1 - x0)) * (WIDTH - EDGE.left - EDGE.right),
    HEIGHT - EDGE.bottom - ((y - y0) / (y1 - y0)) * (HEIGHT - EDGE.top - EDGE.bottom),
  ];
  const drawn: Mark[] = [{ kind: "text", at: [EDGE.left, 22], text: title, colour: ink, size: 16, align: "start" }];
  for (const y of ticks(y0, y1)) {
    drawn.push({ kind: "line", points: [at(x0, y), at(x1, y)], colour: rule, width: 1, alpha: 1, dash: [] });
    drawn.push({ kind: "text", at: [EDGE.left - 8, at(x0, y)[1] + 4], text: figure(y), colour: grey, size: 12, align: "end" });
  }
  for (const x of ticks(x0, x1)) {
    drawn.push({ kind: "text", at: [at(x, y0)[0], HEIGHT - EDGE.bottom + 18], text: figure(x), colour: grey, size: 12, align: "middle" });
  }
  drawn.push({ kind: "text", at: [WIDTH / 2, HEIGHT - 12], text: `${xLabel}   (${yLabel} upwards)`, colour: grey, size: 12, align: "middle" });
  for (const line of lines) drawn.push(...lineMarks(line, at));
  let left = EDGE.left;
  for (const line of lines.filter((each) => !each.thin)) {
    drawn.push({ kind: "line", points: [[left, 34], [left + 18, 34]], colour: resolveColour(line.colour), width: 3, alpha: 1, dash: line.dash ?? [] });
    drawn.push({ kind: "text", at: [left + 24, 38], text: line.label, colour: ink, size: 12, align: "start" });
    left += 44 + 7 * line.label.length;
  }
  return drawn;
}

function lineMarks(line: Line, at: (x: number, y: number) => Point): Mark[] {
  const colour = resolveColour(line.colour);
  const path = (column: (number | null)[]): Point[] => line.x.flatMap((x, i) => (column[i] === null || column[i] === undefined ? [] : [at(x, column[i] as number)]));
  const found: Mark[] = [];
  if (!line.thin && line.low.some((each) => each !== null)) {
    found.push({ kind: "area", points: [...path(line.high), ...path(line.low).reverse()], colour, alpha: 0.18 });
  }
  found.push({ kind: "line", points: path(line.y), colour, width: line.thin ? 1 : 2.5, alpha: line.thin ? 0.35 : 1, dash: line.dash ?? [] });
  return found;
}

function range(values: number[]): [number, number] {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const each of values) {
    low = Math.min(low, each);
    high = Math.max(high, each);
  }
  if (!values.length) return [0, 1];
  return high > low ? [low, high] : [low - 1, high + 1];
}

function ticks(low: number, high: number): number[] {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const found: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

export function toSvg(drawing: Drawing): string {
  const escape = (text: string) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
  const list = (points: Point[]) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  const body = marks(drawing).map((mark) => {
    if (mark.kind === "text") {
      return `<text x="${mark.at[0].toFixed(1)}" y="${mark.at[1].toFixed(1)}" fill="${mark.colour}" font-size="${mark.size}" text-anchor="${mark.align}">${escape(mark.text)}</text>`;
    }
    if (mark.kind === "area") return `<polygon points="${list(mark.points)}" fill="${mark.colour}" fill-opacity="${mark.alpha}"/>`;
    return `<polyline points="${list(mark.points)}" fill="none" stroke="${mark.colour}" stroke-width="${mark.width}" stroke-opacity="${mark.alpha}" stroke-dasharray="${mark.dash.join(" ")}"/>`;
  });
  const ground = `<rect width="${WIDTH}" height="${HEIGHT}" fill="${resolveColour("var(--surface)")}"/>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif">\n${[ground, ...body].join("\n")}\n</svg>\n`;
}

/** A PNG, twice as fine as the SVG's units. */
export function toPng(drawing: Drawing): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  canvas.width = 2 * WIDTH;
  canvas.height = 2 * HEIGHT;
  const draw = canvas.getContext("2d");
  if (!draw) return Promise.resolve(null);
  draw.scale(2, 2);
  draw.fillStyle = resolveColour("var(--surface)");
  draw.fillRect(0, 0, WIDTH, HEIGHT);
  for (const mark of marks(drawing)) {
    draw.globalAlpha = mark.kind === "text" ? 1 : mark.alpha;
    if (mark.kind === "text") {
      draw.font = `${mark.size}px sans-serif`;
      draw.textAlign = mark.align === "middle" ? "center" : mark.align;
      draw.fillStyle = mark.colour;
      draw.fillText(mark.text, ...mark.at);
      continue;
    }
    draw.beginPath();
    mark.points.forEach(([x, y], i) => (i ? draw.lineTo(x, y) : draw.moveTo(x, y)));
    if (mark.kind === "area") {
      draw.fillStyle = mark.colour;
      draw.fill();
    } else {
      draw.setLineDash(mark.dash);
      draw.strokeStyle = mark.colour;
      draw.lineWidth = mark.width;
      draw.stroke();
    }
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Rows as CSV: a text with a comma, a quote or a line end is quoted. */
export function toCsv(rows: readonly (readonly unknown[])[]): string {
  const cell = (value: unknown) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function download(name: string, content: string | Blob, type = "text/plain"): void {
  const url = URL.createObjectURL(typeof content === "string" ? new Blob([content], { type }) : content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
