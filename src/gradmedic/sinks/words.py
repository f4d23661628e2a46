"""What is said of sinks, in both languages."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "off": "{sink} gets nothing more: {why}; training goes on",
        "failing": "{sink} fails and is tried again from time to time: {why}; training goes on",
        "dropping": "{sink} is slower than the training: steps are left out of it from about step {step} on; "
        "training goes on",
        "unfinished": "{sink} did not finish within {seconds:.0f} s and is left behind; {dropped} entries were not "
        "written",
        "waiting": "waiting for {sink} to write the rest, {seconds:.0f} s at most",
        "dropped": "{sink} was not given {dropped} of {all} entries; the run's record has them all",
        "finding": "found in {run} at step {step}",
        "more": "{n} more findings were held back",
        "remedy": "What to do: {text}",
    },
    "zh": {
        "off": "{sink} 不再接收数据：{why}；训练继续进行",
        "failing": "{sink} 出错，稍后会重试：{why}；训练继续进行",
        "dropping": "{sink} 跟不上训练速度：大约从第 {step} 步起有些步不会写入；训练继续进行",
        "unfinished": "{sink} 未能在 {seconds:.0f} 秒内结束，已不再等待；有 {dropped} 条未写入",
        "waiting": "正在等待 {sink} 写完剩余内容，最多 {seconds:.0f} 秒",
        "dropped": "{sink} 有 {dropped}/{all} 条未写入；运行记录中数据完整",
        "finding": "出现在 {run} 的第 {step} 步",
        "more": "另有 {n} 个问题未单独发送",
        "remedy": "建议：{text}",
    },
}


def words(lang: str) -> Mapping[str, str]:
    """Return the sentences of a language, English where it is unknown."""
    return WORDS.get(lang, WORDS["en"])
