"""The rules, one file each; `select` turns what the user asks for into fresh rule objects."""

from __future__ import annotations

from collections.abc import Sequence

from gradmedic.diagnosis.draft import Rule, check_rule
from gradmedic.diagnosis.rules.attention_entropy import AttentionEntropy
from gradmedic.diagnosis.rules.attention_logits import AttentionLogits
from gradmedic.diagnosis.rules.bad_init_scale import BadInitScale
from gradmedic.diagnosis.rules.bad_input import BadInput
from gradmedic.diagnosis.rules.constant_prediction import ConstantPrediction
from gradmedic.diagnosis.rules.dead_units import DeadUnits
from gradmedic.diagnosis.rules.degenerate_filters import DegenerateFilters
from gradmedic.diagnosis.rules.detached_graph import DetachedGraph
from gradmedic.diagnosis.rules.embedding_led_spike import EmbeddingLedSpike
from gradmedic.diagnosis.rules.epsilon_dominates import EpsilonDominates
from gradmedic.diagnosis.rules.exploding_gradient import ExplodingGradient
from gradmedic.diagnosis.rules.false_convergence import FalseConvergence
from gradmedic.diagnosis.rules.fp16_underflow import Fp16Underflow
from gradmedic.diagnosis.rules.frozen_model import FrozenModel
from gradmedic.diagnosis.rules.gan_imbalance import GanImbalance
from gradmedic.diagnosis.rules.graph_leak import GraphLeak
from gradmedic.diagnosis.rules.high_initial_loss import HighInitialLoss
from gradmedic.diagnosis.rules.input_ignored import InputIgnored
from gradmedic.diagnosis.rules.labels_unrelated import LabelsUnrelated
from gradmedic.diagnosis.rules.leak import Leak
from gradmedic.diagnosis.rules.learning_rate_too_high import LearningRateTooHigh
from gradmedic.diagnosis.rules.learning_rate_too_low import LearningRateTooLow
from gradmedic.diagnosis.rules.limit_exceeded import LimitExceeded
from gradmedic.diagnosis.rules.loss_scale_collapse import LossScaleCollapse
from gradmedic.diagnosis.rules.loss_scales_with_batch import LossScalesWithBatch
from gradmedic.diagnosis.rules.lost_updates import LostUpdates
from gradmedic.diagnosis.rules.misplaced_clip import MisplacedClip
from gradmedic.diagnosis.rules.missing_zero_grad import MissingZeroGrad
from gradmedic.diagnosis.rules.no_op_step import NoOpStep
from gradmedic.diagnosis.rules.noise_dominated import NoiseDominated
from gradmedic.diagnosis.rules.nonfinite import NonFinite
from gradmedic.diagnosis.rules.not_in_optimizer import NotInOptimizer
from gradmedic.diagnosis.rules.outlier_batch import OutlierBatch
from gradmedic.diagnosis.rules.outlier_rank import OutlierRank
from gradmedic.diagnosis.rules.output_collapse import OutputCollapse
from gradmedic.diagnosis.rules.output_logit_drift import OutputLogitDrift
from gradmedic.diagnosis.rules.output_range_mismatch import OutputRangeMismatch
from gradmedic.diagnosis.rules.over_clipping import OverClipping
from gradmedic.diagnosis.rules.overfit import Overfit
from gradmedic.diagnosis.rules.padding_dominates import PaddingDominates
from gradmedic.diagnosis.rules.probabilities_as_logits import ProbabilitiesAsLogits
from gradmedic.diagnosis.rules.rank_desync import RankDesync
from gradmedic.diagnosis.rules.same_batches import SameBatches
from gradmedic.diagnosis.rules.saturated_units import SaturatedUnits
from gradmedic.diagnosis.rules.spikes import Spikes
from gradmedic.diagnosis.rules.stale_optimizer import StaleOptimizer
from gradmedic.diagnosis.rules.stale_second_moment import StaleSecondMoment
from gradmedic.diagnosis.rules.symmetric_init import SymmetricInit
from gradmedic.diagnosis.rules.target_scale import TargetScale
from gradmedic.diagnosis.rules.temporal_gradient import TemporalGradient
from gradmedic.diagnosis.rules.tiny_batch_norm import TinyBatchNorm
from gradmedic.diagnosis.rules.unnormalized_input import UnnormalizedInput
from gradmedic.diagnosis.rules.unshuffled_data import UnshuffledData
from gradmedic.diagnosis.rules.untouched_embedding import UntouchedEmbedding
from gradmedic.diagnosis.rules.unused_parameter import UnusedParameter
from gradmedic.diagnosis.rules.vanishing_gradient import VanishingGradient
from gradmedic.diagnosis.rules.weight_decay_dominates import WeightDecayDominates
from gradmedic.diagnosis.rules.wrong_mode import WrongMode
from gradmedic.diagnosis.rules.wrong_sign import WrongSign
from gradmedic.diagnosis.rules.zero_learning_rate import ZeroLearningRate
from gradmedic.errors import InputError

RULES: tuple[type[Rule], ...] = (
    UnusedParameter,
    DetachedGraph,
    NotInOptimizer,
    FrozenModel,
    StaleOptimizer,
    NoOpStep,
    MissingZeroGrad,
    MisplacedClip,
    WrongMode,
    RankDesync,
    ZeroLearningRate,
    GraphLeak,
    TinyBatchNorm,
    NonFinite,
    BadInput,
    Fp16Underflow,
    LossScaleCollapse,
    LostUpdates,
    EpsilonDominates,
    VanishingGradient,
    ExplodingGradient,
    DeadUnits,
    SaturatedUnits,
    SymmetricInit,
    BadInitScale,
    DegenerateFilters,
    TemporalGradient,
    UntouchedEmbedding,
    AttentionLogits,
    AttentionEntropy,
    OutputLogitDrift,
    LearningRateTooHigh,
    LearningRateTooLow,
    OverClipping,
    Spikes,
    StaleSecondMoment,
    EmbeddingLedSpike,
    WeightDecayDominates,
    FalseConvergence,
    NoiseDominated,
    GanImbalance,
    Overfit,
    ProbabilitiesAsLogits,
    OutputRangeMismatch,
    LossScalesWithBatch,
    WrongSign,
    HighInitialLoss,
    UnnormalizedInput,
    TargetScale,
    ConstantPrediction,
    OutlierBatch,
    UnshuffledData,
    LabelsUnrelated,
    PaddingDominates,
    InputIgnored,
    Leak,
    OutputCollapse,
    OutlierRank,
    SameBatches,
    LimitExceeded,
)


def select(wanted: str | Sequence[str | Rule]) -> list[Rule]:
    """Return fresh rule objects.

    Args:
        wanted: "default" for all, or a sequence of codes and rule objects; "default" in it stands for all.

    Raises:
        InputError: an unknown code, or an object that lacks what a rule must have.
    """
    if wanted == "default":
        return [rule() for rule in RULES]
    known = {rule.code: rule for rule in RULES}
    chosen: list[Rule] = []
    for entry in [wanted] if isinstance(wanted, str) else wanted:
        if not isinstance(entry, str):
            check_rule(entry)
            chosen.append(entry)
        elif entry == "default":
            chosen.extend(rule() for rule in RULES)
        elif entry in known:
            chosen.append(known[entry]())
        else:
            raise InputError(
                f'rules must be "default", codes or rule objects; {entry!r} is not among {", ".join(known)}'
            )
    return chosen
