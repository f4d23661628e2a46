"""The words of advice on clipping, in both languages."""

from __future__ import annotations

from collections.abc import Mapping

#: Headings and labels.
LABELS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "title": "clip advice",
        "no_steps": "no optimizer step was recorded, so there is nothing to advise on",
        "scope": "{tried:step|steps} tried, {first} to {last} of {steps:recorded step|recorded steps}",
        "method": "method",
        "level": "threshold",
        "clipped": "clipped",
        "scale": "scale",
        "step": "update",
        "spikes": "spikes",
        "usual": "usual",
        "own": "this run's",
        "legend": "clipped: share of the steps. scale: mean factor on the gradient. update: mean length of the step "
        "relative to no clipping, without spikes{modelled}. spikes: how many it brings below the level at which they "
        "count as spikes, or skips.",
        "modelled": " (for {kind} modelled from the norms)",
        "layer": "layer",
        "layers": "by layer",
        "median": "median",
        "p95": "p95",
        "share": "of norm²",
        "leading": "leads",
        "layers_legend": "Pre-clip norms of a layer's own tensors; its part of the whole squared norm; in how many "
        "of the highest 5 % it has the largest part; share of steps clipped by methods that treat each tensor by "
        "itself.",
        "layers_more": "{n:more layer|more layers}: --format json",
        "recommended": "recommended",
        "why": "why",
        "basis": "basis",
        "use": "use",
        "run": 'gradmedic run --clip "{method}" SCRIPT, or gm.watch(model, optimizer, transform={expression})',
        "colon": ": ",
    },
    "zh": {
        "title": "裁剪建议",
        "no_steps": "没有记录到任何优化器步骤，无法给出建议",
        "scope": "试算 {tried} 步（第 {first} 到 {last} 步，共记录 {steps} 步）",
        "method": "方法",
        "level": "阈值",
        "clipped": "裁剪",
        "scale": "系数",
        "step": "更新",
        "spikes": "尖峰",
        "usual": "惯用",
        "own": "本次运行",
        "legend": "裁剪：被裁剪的步数占比。系数：梯度所乘系数的均值。更新：相对于不裁剪的平均步长，不含尖峰{modelled}"
        "。尖峰：有多少个被压到不再算尖峰，或被跳过。",
        "modelled": "（{kind} 的步长由范数推算）",
        "layer": "层",
        "layers": "按层",
        "median": "中位数",
        "p95": "p95",
        "share": "范数² 占比",
        "leading": "主导",
        "layers_legend": "各层自身张量的裁剪前范数；它占总范数平方的比例；在最高的 5% 的步中由它主导的比例；逐张量裁"
        "剪的方法裁剪该层的步数占比。",
        "layers_more": "另有 {n} 层：--format json",
        "recommended": "建议",
        "why": "理由",
        "basis": "依据",
        "use": "用法",
        "run": 'gradmedic run --clip "{method}" SCRIPT，或 gm.watch(model, optimizer, transform={expression})',
        "colon": "：",
    },
}

#: Reasons, notes and problems, by key.
SENTENCES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "percentiles": "Pre-clip norms of {n:healthy step|healthy steps}: median {p50}, 75th percentile {p75}, 95th "
        "{p95}, highest {max}. Thresholds between the 75th and the 95th percentile clip what is unusual and leave "
        "the rest alone.",
        "fixed": "The level hardly changes, so a fixed threshold fits: the {level}th percentile clips {share} of the "
        "healthy steps.",
        "short": "The basis is short: {n:healthy step|healthy steps}, where {enough} are wanted, so that five of them "
        "lie above the 95th percentile. Whether the level of the norm changes cannot be told yet. Record a longer "
        "run, or take a method that follows the norm, such as zclip().",
        "fixed_short": "Until then the threshold is a first guess: the {level}th percentile clips {share} of "
        "these steps.",
        "following": "A threshold that follows the norm fits better than a fixed one: it clips {share} of the "
        "healthy steps.",
        "drift": "The level of the norm changes by a factor of {factor} in the course of the run.",
        "rate_unknown": "The learning rate is not known, so whether the norm depends on it is not either.",
        "rate_constant": "The learning rate does not change, so the norm cannot depend on it here.",
        "rate_moves": "The norm moves with the learning rate: rank correlation {whole} over the whole, median "
        "{median} ({low} to {high}) over moving windows of {window:step|steps}; where the rate is highest the norm "
        "is {level} times that where it is lowest. A fixed threshold would fit only a part of the schedule.",
        "rate_apart": "The norm hardly depends on the learning rate: rank correlation {whole} over the whole, median "
        "{median} ({low} to {high}) over moving windows of {window:step|steps}; where the rate is highest the norm "
        "is {level} times that where it is lowest.",
        "spikes": "{caught} of {n:spike|spikes} would be caught; spikes at steps {where}.",
        "no_spikes": "No spike was seen; the threshold is a safety net.",
        "calm": "Nothing here calls for clipping: the highest norm is {factor} times the median, and no spike was "
        "seen. The threshold is a safety net.",
        "adaptive": "{kind} divides by the running size of the gradients, so constant clipping barely changes the "
        "step: {method} leaves {scale_share} of the gradient, and {step_share} of the length of the step. What "
        "counts is that spikes are caught, which would also shorten the steps after them.",
        "plain": "{kind} makes its step in proportion to the gradient, so every clipped step is a shorter one: the "
        "steps have {step_share} of their length on average. Under a lower threshold the learning rate would have to "
        "rise.",
        "sign": "{kind} keeps signs or directions only, so clipping by norm hardly changes its steps. Skipping "
        "spikes keeps them out of its momentum.",
        "unknown": "Nothing is known of how {kind} uses the size of gradients: under optimizers in the manner of "
        "Adam constant clipping barely changes the step, under SGD it shortens it.",
        "own": "In this run the threshold was {threshold}: {clipped_share} of the steps were clipped, by a mean "
        "factor of {scale}. The norms here are those before that.",
        "bound_finding": "Steps from {step} on are left out: {code} says that something is wrong there. Cure that "
        "first.",
        "bound_norm": "Steps from {step} on are left out: the norms leave for good there.",
        "unusable": "{n:step was|steps were} left out: skipped, without gradient, zero or not finite.",
        "latest": "The latest {n} of {all:healthy step|healthy steps} were tried.",
        "no_tables": "There are too few per-tensor tables to try methods by tensor; record with every=1.",
        "few_tables": "Methods by tensor were tried on the {n:step|steps} of {all} that have per-tensor tables.",
        "unguarded": "{n:step was|steps were} made with gradients that are not finite. No clip helps against that: add "
        "--guard (gm.guard.default), which skips such steps, and let gradmedic diagnose say where they come from.",
        "left_out": "Not tried, since they need the gradients or the weights themselves: {methods}.",
        "replay": "This is a replay of recorded norms: after the first step that a method changes, the true run "
        "would have gone another way. gm.clip.dry_run(...) tries one while training.",
        "lbfgs": "LBFGS fits curvature from the gradients of several evaluations; clipped ones would mislead it, so "
        "there is no clipping to advise.",
        "no_gradients": "In {n:step|steps} no gradient norm was recorded, so there is nothing to advise on. Either "
        "no gradient arrives (gradmedic diagnose says why) or an engine keeps them to itself.",
        "all_skipped": "All {n:step was|steps were} skipped, so nothing was trained. With a GradScaler let it "
        "settle, and look at gradmedic diagnose.",
        "all_nonfinite": "Not one of {n:step|steps} has a finite gradient norm. Clipping does not help against NaN; "
        "gradmedic diagnose says where it comes from.",
        "all_zero": "All gradients of {n:step|steps} are zero, so there is nothing to clip; gradmedic diagnose says "
        "why.",
        "none_usable": "Of {n:step|steps} none was made with a gradient that is finite and not zero, so there is "
        "nothing to advise on; gradmedic diagnose says what is wrong.",
        "fault_first": "Only {n:healthy step|healthy steps} before {code} begins at step {step}: cure that first "
        "(gradmedic explain {code}).",
        "departs_first": "Only {n:healthy step|healthy steps} before the norms leave for good at step {step}: cure "
        "that first (gradmedic diagnose).",
        "too_short": "Only {n:healthy step|healthy steps} of {steps}; at least {least} are needed.",
    },
    "zh": {
        "percentiles": "{n} 个健康步的裁剪前范数：中位数 {p50}，75 分位 {p75}，95 分位 {p95}，最高 {max}。阈值取在 "
        "75 到 95 分位之间，只裁剪不寻常的步，其余不动。",
        "fixed": "范数水平基本不变，固定阈值即可：{level} 分位会裁剪 {share} 的健康步。",
        "short": "依据不足：只有 {n} 个健康步，应有 {enough} 个，使其中 5 步高于 95 分位。尚不能判断范数水平是否变化。"
        "请记录更长的运行，或采用跟随范数的方法，例如 zclip()。",
        "fixed_short": "在此之前，该阈值只是初步估计：{level} 分位会裁剪其中 {share} 的步。",
        "following": "跟随范数的阈值比固定阈值更合适：它会裁剪 {share} 的健康步。",
        "drift": "训练过程中范数水平变化了 {factor} 倍。",
        "rate_unknown": "学习率未知，因此无法判断范数是否依赖学习率。",
        "rate_constant": "学习率没有变化，因此看不出范数是否依赖学习率。",
        "rate_moves": "范数随学习率变化：整体秩相关 {whole}，{window} 步滑动窗口内相关系数中位数 {median}（{low} 到 "
        "{high}）；学习率最高处的范数是最低处的 {level} 倍。固定阈值只适合调度的一部分。",
        "rate_apart": "范数几乎不依赖学习率：整体秩相关 {whole}，{window} 步滑动窗口内相关系数中位数 {median}（{low} "
        "到 {high}）；学习率最高处的范数是最低处的 {level} 倍。",
        "spikes": "{n} 个尖峰中可以压住 {caught} 个；尖峰出现在第 {where} 步。",
        "no_spikes": "没有出现尖峰，阈值只是保险。",
        "calm": "这里并不需要裁剪：最高范数是中位数的 {factor} 倍，也没有尖峰。阈值只是保险。",
        "adaptive": "{kind} 会除以梯度的滑动大小，因此恒定的裁剪几乎不改变步长：{method} 只留下 {scale_share} 的梯度"
        "，步长却仍有 {step_share}。重要的是压住尖峰，否则其后的步长也会变短。",
        "plain": "{kind} 的步长与梯度成正比，每次裁剪都会缩短步长：平均剩下 {step_share}。阈值更低时需要提高学习率。",
        "sign": "{kind} 只保留符号或方向，按范数裁剪几乎不改变步长。跳过尖峰可以不让它们进入动量。",
        "unknown": "不清楚 {kind} 如何使用梯度大小：对 Adam 一类优化器，恒定的裁剪几乎不改变步长；对 SGD 则会缩短步长"
        "。",
        "own": "本次运行的阈值为 {threshold}：{clipped_share} 的步被裁剪，平均系数 {scale}。这里的范数是裁剪之前的。",
        "bound_finding": "从第 {step} 步起不计入：{code} 表明那里出了问题，请先解决它。",
        "bound_norm": "从第 {step} 步起不计入：范数从那里起一去不返。",
        "unusable": "有 {n} 步不计入：被跳过、没有梯度、梯度为零或不是有限值。",
        "latest": "{all} 个健康步中试算了最近的 {n} 步。",
        "no_tables": "逐张量的表太少，无法试算逐张量的方法；请用 every=1 记录。",
        "few_tables": "逐张量的方法只在 {all} 步中有逐张量表的 {n} 步上试算。",
        "unguarded": "有 {n} 步在梯度含 NaN 或 Inf 时照常更新。裁剪对此无效：请加上 --guard（gm.guard.default），"
        "它会跳过这些步；来源见 gradmedic diagnose。",
        "left_out": "未试算（需要梯度或权重本身）：{methods}。",
        "replay": "这是对已记录范数的重放：方法一旦改变某一步，真实的训练就会走上另一条路。gm.clip.dry_run(...) 可以"
        "在训练中试用。",
        "lbfgs": "LBFGS 用多次求值的梯度拟合曲率，裁剪会误导它，因此没有裁剪建议。",
        "no_gradients": "{n} 步中没有记录到梯度范数，无法给出建议。要么没有梯度到达（gradmedic diagnose 会说明原因）"
        "，要么引擎没有公开梯度。",
        "all_skipped": "全部 {n} 步都被跳过，什么也没有训练。使用 GradScaler 时请等它稳定，并查看 gradmedic diagnose。",
        "all_nonfinite": "{n} 步中没有一步的梯度范数是有限值。裁剪解决不了 NaN；gradmedic diagnose 会说明它的来源。",
        "all_zero": "{n} 步的梯度全部为零，没有可裁剪的；gradmedic diagnose 会说明原因。",
        "none_usable": "{n} 步中没有一步的梯度既有限又不为零，无法给出建议；gradmedic diagnose 会说明问题所在。",
        "fault_first": "{code} 从第 {step} 步开始，之前只有 {n} 个健康步：请先解决它（gradmedic explain {code}）。",
        "departs_first": "范数从第 {step} 步起一去不返，之前只有 {n} 个健康步：请先解决它（gradmedic diagnose）。",
        "too_short": "{steps} 步中只有 {n} 个健康步，至少需要 {least} 个。",
    },
}
