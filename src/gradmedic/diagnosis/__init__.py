"""Judging: rules that read frames and facts, and name faults with their place, first step, evidence and remedy."""

from __future__ import annotations

from gradmedic.diagnosis.draft import Draft as Draft
from gradmedic.diagnosis.draft import Rule as Rule
from gradmedic.diagnosis.engine import Engine as Engine
from gradmedic.diagnosis.finding import Evidence as Evidence
from gradmedic.diagnosis.finding import Finding as Finding
from gradmedic.diagnosis.finding import Remedy as Remedy
from gradmedic.diagnosis.replay import diagnose as diagnose
from gradmedic.diagnosis.view import View as View

__all__ = ["Draft", "Engine", "Evidence", "Finding", "Remedy", "Rule", "View", "diagnose"]
