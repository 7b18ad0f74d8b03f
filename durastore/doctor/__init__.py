"""Staged checks after a crash, a move or a reboot: is it safe to go on, and how."""
