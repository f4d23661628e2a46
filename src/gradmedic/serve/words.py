"""What the server says on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "waiting": "waiting for {path}: there is no run in it yet",
        "failed": "this could not be shown: {error}",
        "serving": "gradmedic: {count} at {url} (Ctrl-C ends it)",
        "one_run": "one run",
        "runs": "{n} runs",
        "no_runs": "waiting for a run",
    },
    "zh": {
        "waiting": "正在等待 {path}：其中还没有运行记录",
        "failed": "无法显示：{error}",
        "serving": "gradmedic：{count}，地址 {url}（按 Ctrl-C 结束）",
        "one_run": "1 个运行",
        "runs": "{n} 个运行",
        "no_runs": "正在等待运行",
    },
}
