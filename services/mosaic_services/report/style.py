"""The style sheet of the report's pages: light and dark, from a phone to a wide screen."""

import base64
import hashlib

__all__ = ["POLICY", "STYLE", "shade_of"]

_SHADES = 10
_DARKEST = 0.35

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --card: #f6f8fa; --grid: #d5d9de; --link: #0550ae;
  --warn: #9a6700; --warn-paper: #fff8e5; --win: 0,114,178; --loss: 213,94,0;
  --c1: #0072b2; --c2: #d55e00; --c3: #009e73; --c4: #b0568f; --c5: #8a6d00;
  --c6: #3a8fc4; --c7: #6a4fb3; --c8: #5c6670 }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6edf3; --soft: #9aa5b1; --paper: #0f1419; --card: #171d24; --grid: #333c46; --link: #79b8ff;
  --warn: #e3b341; --warn-paper: #2a2310;
  --c1: #58a6dd; --c2: #f0883e; --c3: #3fc79a; --c4: #e089bf; --c5: #d8b23a;
  --c6: #8ccbf2; --c7: #b09cf0; --c8: #aab4bf } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1.2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem }
a { color: var(--link) }
.facts, .note, figcaption { color: var(--soft) }
.note { font-size: .88rem; max-width: 60rem; margin: .5rem 0 0 }
.warnings { background: var(--warn-paper); border-left: 4px solid var(--warn); border-radius: 4px; padding: .6rem 1rem;
  margin: 1.2rem 0 }
.warnings h2 { margin: 0; font-size: 1rem; color: var(--warn) }
.warnings ul { margin: .3rem 0; padding-left: 1.2rem }
.wide { overflow-x: auto; margin: 0 -1rem; padding: 0 1rem }
.tall { max-height: 34rem; overflow-y: auto }
.tall th { position: sticky; top: 0; background: var(--paper); z-index: 1 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem }
th, td { padding: .34rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid) }
th { color: var(--soft); font-weight: 600; font-size: .85rem; border-bottom: 2px solid var(--grid) }
th:first-child, td:first-child, .left { text-align: left }
td:first-child, th:first-child { padding-left: 0; position: sticky; left: 0; background: var(--paper) }
td:first-child { font-weight: 600 }
td.message { white-space: normal; min-width: 16rem; overflow-wrap: anywhere }
tr:target { outline: 2px solid var(--link); outline-offset: -2px }
code, pre { font-family: ui-monospace, monospace; font-size: .88rem }
pre { background: var(--card); padding: .7rem .9rem; border-radius: 6px; overflow-x: auto }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 29rem), 1fr)); gap: 1.4rem 2rem }
figure { margin: 0 } figure h3 { font-size: 1rem; margin: 0 0 .3rem }
figure svg { width: 100%; max-width: 36rem; height: auto; display: block }
figcaption { font-size: .85rem }
video, img { width: 100%; max-width: 36rem; border-radius: 6px; background: #000 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere } dd dl { margin-bottom: .3rem }
.pages a, .pages b { display: inline-block; padding: .1rem .45rem }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } dd dl { margin-left: 1rem }
  th, td { padding: .34rem .55rem } h1 { font-size: 1.4rem } }
@media print { body { max-width: none } .tall { max-height: none } }
"""
STYLE += "".join(
    f".{side}-{step} {{ background: rgba(var(--{side}), {_DARKEST * step / _SHADES:.3f}) }}\n"
    for side in ("win", "loss")
    for step in range(1, _SHADES + 1)
)

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self'; media-src 'self'"
"""The content security policy of a page: its style sheet, pictures and videos, and no script."""


def shade_of(share: float) -> str:
    """Return the class of a cell that shows a share: none at a half, darker the farther from it."""
    step = round(abs(share - 0.5) * 2 * _SHADES)
    return "" if step == 0 else f"{'win' if share > 0.5 else 'loss'}-{step}"  # noqa: PLR2004 - a half
