"""The report's CSS: system fonts, light and dark, from 360 px wide upwards."""

CSS = """
:root {
  --ink: #1b1f24; --muted: #626b76; --grid: #e4e7eb; --paper: #ffffff; --panel: #f6f7f9;
  --good: #0b7a3e; --bad: #b3261e; --warn: #fff4e0; --warn-line: #d97706;
  --level-0: #d97706; --level-1: #0f8a6d; --level-2: #2f6fde;
  --level-3: #8b46c9; --level-4: #c2334d; --level-5: #5b6b1e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ed; --muted: #98a2ad; --grid: #2a3038; --paper: #14171b; --panel: #1c2026;
    --good: #4cc38a; --bad: #ff7b72; --warn: #2c2415; --warn-line: #f0a13a;
    --level-0: #f0a13a; --level-1: #3fc3a0; --level-2: #6ea8ff;
    --level-3: #bd8bf0; --level-4: #f27a8e; --level-5: #a9bd5a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
.brand { margin: 0; font-weight: 600; color: var(--muted); }
.brand span { font-weight: 400; }
h1 { margin: .4rem 0 1.4rem; font-size: clamp(1.35rem, 1rem + 1.7vw, 2rem); line-height: 1.25;
  letter-spacing: -.015em; text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.2rem; letter-spacing: -.01em; }
h3 { margin: 1.2rem 0 .5rem; font-size: 1rem; }
section { margin-top: 2.75rem; }
small, .muted, .note { color: var(--muted); }
.note, figcaption { margin: .6rem 0 0; font-size: .875rem; color: var(--muted); }
.good { color: var(--good); } .bad { color: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem 2rem; margin: 0; }
.facts dt { font-size: .8rem; color: var(--muted); }
.facts dd { margin: 0; font-weight: 600; }
.alarms { padding: 1rem 1.2rem; background: var(--warn); border-left: 4px solid var(--warn-line);
  border-radius: 4px; }
.alarms ul { margin: 0; padding-left: 1.1rem; }
.plain { margin: 0; padding: 0; list-style: none; }
.plain li { padding: .55rem 0; border-bottom: 1px solid var(--grid); }
.plain li:last-child { border: 0; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; }
.narrow { display: none; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .5rem .9rem .5rem 0; text-align: right; vertical-align: top; }
th:last-child, td:last-child { padding-right: .2rem; }
thead th { font-weight: 600; border-bottom: 1.5px solid var(--ink); white-space: nowrap; }
tbody th { text-align: left; font-weight: 400; }
tbody tr { border-bottom: 1px solid var(--grid); }
.count { white-space: nowrap; }
td small { display: block; font-size: .8rem; white-space: nowrap; }
.total td, .total th { font-weight: 600; }
.total small { font-weight: 400; }
.dot { display: inline-block; width: .65em; height: .65em; margin-right: .45em; flex: none;
  border-radius: 50%; }
.l0 { background: var(--level-0); } .l1 { background: var(--level-1); }
.l2 { background: var(--level-2); } .l3 { background: var(--level-3); }
.l4 { background: var(--level-4); } .l5 { background: var(--level-5); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 .75rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr));
  gap: 1.5rem 1.75rem; }
.curves figcaption { margin: 0 0 .25rem; font-weight: 600; color: var(--ink); }
details { border: 1px solid var(--grid); border-radius: 6px; margin: .4rem 0; }
summary { display: flex; flex-wrap: wrap; align-items: center; gap: 0 .75rem;
  padding: .6rem .8rem; cursor: pointer; list-style: none; }
summary .dot { margin-right: -.3em; }
summary::-webkit-details-marker { display: none; }
summary:hover { background: var(--panel); }
summary:focus-visible { outline: 2px solid var(--level-2); outline-offset: 1px; }
details[open] > summary { border-bottom: 1px solid var(--grid); }
details > .note, details > ol { margin: .75rem .8rem; }
details > ol { padding-left: 1.3rem; }
details > pre { margin: .8rem; }
li > p { margin: .8rem 0 .3rem; }
code, pre { font: .82rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: .3rem 0; padding: .6rem .75rem; max-height: 24rem; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); border-radius: 4px; }
.observation { background: none; border-left: 3px solid var(--grid); border-radius: 0;
  color: var(--muted); }
@media (max-width: 640px) {
  main { padding-top: 1.25rem; }
  section { margin-top: 2.25rem; }
  .wide { display: none; } .narrow { display: block; }
  th, td { padding-right: .5rem; font-size: .875rem; }
  td small { font-size: .72rem; }
  td small { white-space: normal; }
}
@media print { details { break-inside: avoid; } }
"""
