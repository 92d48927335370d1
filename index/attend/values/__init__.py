"""Values: weights over documents become an answer, by the type of the values.

`infer` reads a type off a sample of a collection's values, `blend_for` gives the
accumulator for it, `select` picks the value that a request wants from a document.

Every answer has `type` and `coverage`, the share of the weight that lies on documents
with a value of that type; the rest is left out and what remains is renormalised. The
other keys are a public promise:

| type                | keys                                                             |
|---------------------|------------------------------------------------------------------|
| number              | `mean`, `std`, `effective_sample_size`                           |
| vector              | `vector`                                                         |
| boolean             | `value`, `probability` (of true), `distribution` (`true`, `false`) |
| category, labels    | `value` (the likeliest), `distribution` (label to share)         |
| object              | `fields` (name to answer)                                        |
| text, image, mixed  | `value` (the heaviest), `values` (at most ten of `id`, `value`, `weight`) |

Distributions and lists run from the largest share down, ties by label or id. Documents with
equal values are one entry of `values`, with the sum of their weights and the id of the heaviest.
Where no weight lies on a value, `coverage` is 0.0 and the other keys are null (an object keeps
its fields, each with its own nulls).

The answer of a search has all of these keys and `reason` always (`ANSWER_KEYS`), null where one
does not apply. A hard answer is one document's value: `distribution`, `probability`, `std` and
`effective_sample_size` are null there, and `values` has the weight of the document.

>>> from attend.values.blends import blend_for
>>> from attend.values.kinds import infer
>>> blend = blend_for(infer([10, 20.5, None, 30]))
>>> blend.add(["a", "b", "c"], [10, 20, None], [0.25, 0.25, 0.5])
>>> answer = blend.answer()
>>> answer["mean"], answer["std"], answer["effective_sample_size"], answer["coverage"]
(15.0, 5.0, 2.0, 0.5)
"""
