"""The words of the notebook's views, in both languages."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "healthy": "Nothing found",
        "found": "{n} finding",
        "found_many": "{n} findings",
        "finding": "finding",
        "severity": "severity",
        "step": "step {step}",
        "where": "where",
        "remedy": "what to do",
        "evidence": "evidence",
        "value": "value",
        "threshold": "threshold",
        "follows": "follows from it",
        "more": "and {n} more",
        "whole_run": "the run as a whole",
    },
    "zh": {
        "healthy": "未发现问题",
        "found": "{n} 个问题",
        "found_many": "{n} 个问题",
        "finding": "问题",
        "severity": "严重程度",
        "step": "第 {step} 步",
        "where": "位置",
        "remedy": "处理建议",
        "evidence": "证据",
        "value": "测量值",
        "threshold": "阈值",
        "follows": "由此引起",
        "more": "另有 {n} 项",
        "whole_run": "整个运行",
    },
}
