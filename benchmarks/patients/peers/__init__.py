"""Published rule packs, re-implemented over gradmedic's records with the thresholds that their sources give.

They see what gradmedic sees, so the comparison is of rules and thresholds. Where a peer needs what a record does not
hold, its module says so; whatever has to be read into a rule is read in the peer's favour.
"""

from __future__ import annotations

from benchmarks.patients.peers import autotrainer, deepchecker, sagemaker, umlaut
from benchmarks.patients.peers.verdict import Peer

PEERS: tuple[Peer, ...] = (
    Peer("AutoTrainer", autotrainer.judge),
    Peer("SageMaker Debugger", sagemaker.judge),
    Peer("UMLAUT", umlaut.judge),
    Peer("TheDeepChecker", deepchecker.judge),
)
