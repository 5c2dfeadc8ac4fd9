/** All pages. The rail and the router read this table; a page that is not in it does not exist. */

import type { ComponentType } from "preact";
import { Compare } from "./compare";
import { Experiment } from "./experiment";
import { Experiments } from "./experiments";
import { Hosts } from "./hosts";
import { Operators } from "./operators";
import { Overview } from "./overview";
import { Run } from "./run";
import { Runs } from "./runs";
import { Start } from "./start";
import { Wall } from "./wall";
import { Workers } from "./workers";

export interface PageEntry {
  /** Parts that begin with a colon are given to the component as `params`. */
  path: string;
  title: string;
  /** Whether the rail shows it. */
  rail: boolean;
  /** Other paths for which the rail marks this page. */
  also?: string[];
  component: ComponentType<{ params: Record<string, string> }>;
}

export const PAGES: PageEntry[] = [
  { path: "/", title: "Overview", rail: true, component: Overview },
  { path: "/runs", title: "Runs", rail: true, component: Runs, also: ["/run/:run"] },
  { path: "/run/:run", title: "Run", rail: false, component: Run },
  { path: "/start", title: "Start a run", rail: true, component: Start },
  { path: "/compare", title: "Compare", rail: true, component: Compare },
  { path: "/wall", title: "Wall", rail: true, component: Wall },
  { path: "/operators", title: "Operators", rail: true, component: Operators },
  { path: "/experiments", title: "Experiments", rail: true, component: Experiments, also: ["/experiment/:name"] },
  { path: "/experiment/:name", title: "Experiment", rail: false, component: Experiment },
  { path: "/workers", title: "Workers", rail: true, component: Workers },
  { path: "/hosts", title: "Hosts", rail: true, component: Hosts },
];
