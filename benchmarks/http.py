"""HTTP: requests a second and their median time, beside txtai's and Chroma's servers.

    python benchmarks/http.py [--quick] [--json]

The servers run side by side on this machine and take turns under the same load, so that a
machine whose speed drifts slows all of them; a ratio is the quotient of their medians. Ours has a
process for each core (`--processes`), Chroma's has threads on all of them, and txtai's is one
process, as its documentation starts it, whose model uses all of them.

- `requests_over_txtai_c32`: text queries on SciFact over 32 connections, every text another and
  no cache; same model folder, same documents, ten hits each. txtai answers with ids and scores
  alone, we with values and payloads too.
- `p50_over_txtai_c1`: the median time of the same over one connection, ours over txtai's.
- `requests_over_chroma`: vector queries over 32 connections, the lower of the ratios at both
  sizes; the recall of both servers is among the figures.
"""

import sys

if __name__ == "__main__":
    from http_beside import main

    main()
else:
    # Beside this file `import http` finds it first, and means the standard library's.
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path
    from sysconfig import get_path

    folder = Path(get_path("stdlib"), "http")
    spec = spec_from_file_location(
        "http", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[__name__] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
