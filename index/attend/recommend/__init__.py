"""Recommending: a search whose query is a history.

Every document that a user met attends to the catalogue by itself, and a document's weight is the
weighted mean of what they give it: w(d) = Σ_j π_j · softmax_j(z_j)(d). What each of them gave is
the explanation. A prediction (`target`) is the reverse: the target attends to the history.
"""
