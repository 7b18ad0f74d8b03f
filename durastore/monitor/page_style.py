"""How the page looks: one style sheet, light and dark by the browser's wish, from a phone's width up."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root { --ink: #1c2733; --soft: #52606d; --paper: #f5f7fa; --card: #ffffff; --line: #d9e0e7;
  --good: #14794b; --warn: #8a5a00; --bad: #b3261e; --accent: #1f5fbf;
  --bad-paper: #fdecea; --warn-paper: #fff4dc; --info-paper: #e8f0fb; }
.body--dark { --ink: #e6ebf0; --soft: #a3b1be; --paper: #12181f; --card: #1b232c; --line: #33404d;
  --good: #58c792; --warn: #f0b44c; --bad: #ff8a80; --accent: #7fb0ff;
  --bad-paper: #3a1f1d; --warn-paper: #362a12; --info-paper: #1b2a3f; }
body { background: var(--paper) !important; color: var(--ink); }
.nicegui-content { padding: 12px; max-width: 1280px; margin: 0 auto; gap: 14px; align-items: stretch; }
.ds-top { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; }
.ds-h1 { font-size: 1.35rem; font-weight: 650; }
.ds-h2 { font-size: 1.02rem; font-weight: 650; margin-bottom: 6px; }
.ds-soft { color: var(--soft); font-size: .88rem; overflow-wrap: anywhere; }
.ds-num { font-variant-numeric: tabular-nums; }
.ds-card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px;
  min-width: 0; }
.ds-grid { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.ds-two { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.ds-fact .v { font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.25; }
.ds-banner { border-left: 5px solid var(--accent); background: var(--info-paper); border-radius: 6px; padding: 8px 12px;
  margin-bottom: 8px; overflow-wrap: anywhere; }
.ds-banner.bad { border-color: var(--bad); background: var(--bad-paper); }
.ds-banner.warn { border-color: var(--warn); background: var(--warn-paper); }
.ds-banner .t { font-weight: 650; }
.ds-stages { display: grid; gap: 8px; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); }
.ds-stage { border: 1px solid var(--line); border-top: 4px solid var(--line); border-radius: 8px; padding: 8px 10px;
  min-width: 0; }
.ds-stage.limit { border-top-color: var(--accent); }
.ds-stage.starved { opacity: .78; }
.ds-stage.stalled { border-top-color: var(--bad); background: var(--bad-paper); }
.ds-stage .n { font-weight: 650; }
.ds-stage .m { font-size: .8rem; font-weight: 650; color: var(--accent); min-height: 1.2em; }
.ds-stage.stalled .m { color: var(--bad); }
.ds-stage.starved .m { color: var(--soft); }
.ds-table { background: transparent !important; box-shadow: none !important; }
.ds-table th, .ds-table td { padding: 4px 8px !important; font-variant-numeric: tabular-nums; color: var(--ink); }
.ds-table td.text { white-space: normal; overflow-wrap: anywhere; min-width: 140px; }
.ds-meter { position: relative; }
.ds-mark { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink); }
.ds-event { font-size: .86rem; overflow-wrap: anywhere; padding: 2px 0; border-bottom: 1px solid var(--line); }
.state-killed, .state-silent, .state-stalled { color: var(--bad) !important; font-weight: 650; }
@media (max-width: 640px) { .wide { display: none !important; } .nicegui-content { padding: 8px; } }
@media (prefers-reduced-motion: reduce) { * { transition: none !important; animation: none !important; } }
"""
