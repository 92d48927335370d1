#!/bin/sh
# Ask a running server as Dify and as clients of Qdrant do. The collection has an encoder; one of
# 100 texts or more knows which questions it has no answer to.
#
#     attend serve --data library &
#     sh examples/front_ends.sh http://localhost:8000 default
#
# Where the server asks for keys, ATTEND_KEY is sent.
set -eu
url=${1:-http://localhost:8000} collection=${2:-default} question=${3:-life on a ship}
key=${ATTEND_KEY:-none}

ask() { # METHOD PATH [BODY]
    curl -sS --fail-with-body -X "$1" "$url$2" -H "Authorization: Bearer $key" \
        ${3:+-H 'Content-Type: application/json' -d "$3"}
    echo
}

echo "# Dify tries an address, then asks, then asks what nothing in a library of books answers."
ask POST /retrieval
ask POST /retrieval '{"knowledge_id": "'"$collection"'", "query": "'"$question"'",
    "retrieval_setting": {"top_k": 2, "score_threshold": 0.01},
    "metadata_condition": {"logical_operator": "or", "conditions": [
        {"name": "genre", "comparison_operator": "is", "value": "sea"},
        {"name": "year", "comparison_operator": "≥", "value": "1900"}]}}'
ask POST /retrieval '{"knowledge_id": "'"$collection"'", "query": "quarterly dividend taxation amendments"}'

echo "# A client of Qdrant lists collections and points, and searches by a point or a vector."
ask GET /collections
ask POST "/collections/$collection/points/scroll" '{"limit": 2, "filter": {
    "must": [{"key": "year", "range": {"gte": 1800}}],
    "must_not": [{"key": "genre", "match": {"any": ["essay", "gothic"]}}]}}'
ask POST "/collections/$collection/points/query" '{"query": 3, "limit": 2, "with_payload": ["_id", "genre"]}'
