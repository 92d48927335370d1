"""Learning W_Q and W_K from what users call relevant, on frozen embeddings.

Arrays in, arrays out: nothing here knows of a store or a collection. `attend.training` brings
the two together.
"""
