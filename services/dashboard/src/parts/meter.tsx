/** Small bars, and a sparkline. */

export function Meter({ label, part, children }: { label: string; part: number; children: string }) {
  const percent = Math.max(0, Math.min(100, 100 * part));
  return (
    <div class="meter">
      <span class="muted">{label}</span>
      <span class="track" role="img" aria-label={`${label} ${Math.round(percent)} percent`}>
        <span style={{ width: `${percent}%` }} />
      </span>
      <span class="number">{children}</span>
    </div>
  );
}

export function Progress({ part, label }: { part: number | null; label: string }) {
  if (part === null) return null;
  const percent = Math.max(0, Math.min(100, 100 * part));
  return (
    <div
      class="progress"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(percent)}
    >
      <span style={{ width: `${percent}%` }} />
    </div>
  );
}

export function Sparkline({ values, label }: { values: number[]; label: string }) {
  if (values.length < 2) return <span class="sparkline" />;
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const points = values.map((value, i) => `${(100 * i) / (values.length - 1)},${29 - (26 * (value - low)) / range}`);
  return (
    <svg class="sparkline" viewBox="0 0 100 32" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}
