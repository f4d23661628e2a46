"""Showing: the check-up in the terminal, and reports."""

from __future__ import annotations
