/** Tabs whose choice is in the address. Arrow keys move between them. */

import { query, setQuery } from "../router";

interface TabsProps {
  names: readonly string[];
  keyName?: string;
  label: string;
  /** The tab that is shown, if it is not only the address that tells. */
  current?: string;
}

export function Tabs({ names, keyName = "tab", label, current = currentTab(names, keyName) }: TabsProps) {
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const next = names[(names.indexOf(current) + step + names.length) % names.length] as string;
    setQuery({ [keyName]: slug(next) });
    document.getElementById(`tab-${slug(next)}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={onKeyDown}>
      {names.map((name) => (
        <button
          key={name}
          type="button"
          role="tab"
          id={`tab-${slug(name)}`}
          aria-selected={name === current}
          tabIndex={name === current ? 0 : -1}
          onClick={() => setQuery({ [keyName]: slug(name) })}
        >
          {name}
        </button>
      ))}
    </div>
  );
}

export function currentTab<Name extends string>(names: readonly Name[], keyName = "tab"): Name {
  const given = query.value.get(keyName);
  return names.find((name) => slug(name) === given) ?? (names[0] as Name);
}

function slug(name: string): string {
  return name.toLowerCase().replaceAll(" ", "-");
}
