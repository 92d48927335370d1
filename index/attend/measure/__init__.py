"""Evaluation: what was found, recommended or predicted, against what turned out to be right.

`rankings` measures searches by judgements; `interactions` what was recommended by what users met
later; `ratings` predictions by what users gave.
"""
