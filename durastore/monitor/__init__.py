"""Watching runs from outside: one view of what happens in spool roots, shown as a page, in a terminal, or as JSON."""
