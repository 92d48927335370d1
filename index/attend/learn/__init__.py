"""Learning from what users call relevant, interact with and rate, on frozen embeddings.

Arrays in, arrays out: nothing here knows of a store or a collection. `attend.training` brings
the two together, with one class for each objective.

`fit` has the loop and W_Q and W_K; `ranking`, `answers`, `next_items` and `rating_net` each have a
model with its loss. `held_out` has the splits, each one function that says what is held out;
`selection` chooses among a grid; `promotion` has the tests, each one criterion; `calibration` makes
weights probabilities.
"""
