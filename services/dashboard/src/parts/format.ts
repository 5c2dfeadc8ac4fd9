/** Numbers, sizes and times for people. */

const grouped = new Intl.NumberFormat("en");

export function count(value: number): string {
  return grouped.format(value);
}

/** A value of a curve or a metric: four digits are enough to compare by eye. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (value !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  return grouped.format(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let rest = value;
  while (rest >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${unit && rest < 10 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

/** A span of seconds, such as `2 h 5 min`. */
export function span(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function ago(seconds: number): string {
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Runs are shown by the last six characters of their id. */
export function shortId(run: string): string {
  return run.slice(-6);
}
