"""The parts of the training loop that ``edge_train.trainer.Trainer`` puts together."""
