"""Watching inside the trainers that people already use: one file for each library.

=================  =====================================================  ==========================
library            what                                                   extra
=================  =====================================================  ==========================
Lightning          `lightning.GradMedicCallback`                          `gradmedic[lightning]`
Lightning Fabric   `fabric.GradMedicCallback`                             `gradmedic[lightning]`
Transformers       `transformers.GradMedicCallback`                       `gradmedic[transformers]`
Accelerate         `accelerate.GradMedicTracker`                          `gradmedic[accelerate]`
Keras 3            `keras.GradMedicCallback`                              `gradmedic[keras]`
Ignite             `ignite.GradMedicHandler`                              `gradmedic[ignite]`
skorch             `skorch.GradMedicCallback`                             `gradmedic[skorch]`
=================  =====================================================  ==========================

Numbers are read where they are read in any loop, at the optimizer's step: pre-clip and unscaled, whatever the trainer
does around it. What these classes add is what only the trainer knows: when training begins and ends, which model it is,
metrics of validation, how to stop, and where the state of a run that is resumed lies. None of them imports its library
before its class is asked for.
"""
