/** A table that draws only the rows in view, so that five thousand cost as much as fifty. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export const ROW_HEIGHT = 36;
const OVERSCAN = 8;

export interface Column<Row> {
  key: string;
  title: string;
  /** Width in pixels; columns without one share the rest. */
  width?: number;
  right?: boolean;
  /** Whether the title is a button that sorts. */
  sorts?: boolean;
  /** What the head shows in place of the title. */
  head?: ComponentChildren;
  cell(row: Row): ComponentChildren;
  hover?(row: Row): string;
}

export interface TableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: Column<Row>[];
  keyOf(row: Row): string;
  /** Height in CSS units. */
  height: string;
  sort?: { key: string; down: boolean };
  onSort?: (key: string) => void;
  rowClass?: (row: Row) => string;
  empty?: ComponentChildren;
  /** Called with the rows that are drawn, whenever they are others. */
  onView?: (rows: readonly Row[]) => void;
}

export function Table<Row>(props: TableProps<Row>) {
  const { label, rows, columns, keyOf, height, sort, onSort, rowClass, empty, onView } = props;
  const box = useRef<HTMLDivElement>(null);
  const view = useSignal({ top: 0, height: 800 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => (view.value = { top: element.scrollTop, height: element.clientHeight });
    look();
    element.addEventListener("scroll", look, { passive: true });
    const watcher = new ResizeObserver(look);
    watcher.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      watcher.disconnect();
    };
  }, []);
  const first = Math.max(0, Math.floor(view.value.top / ROW_HEIGHT) - OVERSCAN);
  const last = Math.min(rows.length, Math.ceil((view.value.top + view.value.height) / ROW_HEIGHT) + OVERSCAN);
  const drawn = rows.slice(first, last);
  const shown = drawn.map(keyOf).join();
  useEffect(() => onView?.(drawn), [shown]);
  const wide = columns.reduce((sum, column) => sum + (column.width ?? 160), 0);
  return (
    <div class="virtual" ref={box} tabIndex={0} role="region" aria-label={label} style={{ maxHeight: height, "--table-width": `${wide}px` }}>
      <table aria-rowcount={rows.length + 1} data-rows={rows.length}>
        <colgroup>
          {columns.map((column) => (
            <col key={column.key} style={column.width ? { width: `${column.width}px` } : {}} />
          ))}
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <Head key={column.key} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          <Spacer rows={first} columns={columns.length} />
          {drawn.map((row, i) => (
            <tr key={keyOf(row)} aria-rowindex={first + i + 2} class={rowClass?.(row)}>
              {columns.map((column) => (
                <td key={column.key} class={column.right ? "right number" : ""} title={column.hover?.(row)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          <Spacer rows={rows.length - last} columns={columns.length} />
        </tbody>
      </table>
      {!rows.length && empty}
    </div>
  );
}

function Spacer({ rows, columns }: { rows: number; columns: number }) {
  if (rows <= 0) return null;
  return (
    <tr class="spacer" aria-hidden="true">
      <td colSpan={columns} style={{ height: `${rows * ROW_HEIGHT}px` }} />
    </tr>
  );
}

interface HeadProps<Row> {
  column: Column<Row>;
  sort: TableProps<Row>["sort"];
  onSort: TableProps<Row>["onSort"];
}

function Head<Row>({ column, sort, onSort }: HeadProps<Row>) {
  const here = sort?.key === column.key;
  const sorted = here ? (sort?.down ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={column.right ? "right" : ""} aria-sort={sorted}>
      {column.head ??
        (column.sorts && onSort ? (
          <button type="button" onClick={() => onSort(column.key)}>
            {column.title}
            {here ? (sort?.down ? " ↓" : " ↑") : ""}
          </button>
        ) : (
          column.title
        ))}
    </th>
  );
}
