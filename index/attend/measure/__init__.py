"""Evaluation: what was found, recommended or predicted, against what turned out to be right.

`rankings` measures searches by judgements; `interactions` recommendations by the later
interactions of users; `ratings` predictions by the values that users gave.
"""
