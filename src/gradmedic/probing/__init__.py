"""Active probes: small experiments on the model, from which it comes out untouched.

    target -> untouched -> line, batch, inputs, overfit, future -> results

`experiments.run_probes` runs them; `kept.StepProbe` feeds them with a run's own steps for `gradmedic run --probe`.
"""
