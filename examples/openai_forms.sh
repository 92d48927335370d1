#!/bin/sh
# The forms of OpenAI, Cohere and Jina by curl, against a running server:
#   attend serve --data library & sh examples/openai_forms.sh http://localhost:8000
# Where the server asks for a key, set ATTEND_KEY to one of the scope admin.
set -eu
V1=${1:-http://localhost:8000}/v1
KEY=${ATTEND_KEY:-none}

send() { # METHOD PATH [JSON]
    curl -sS --fail-with-body -X "$1" "$V1$2" -H "Authorization: Bearer $KEY" \
        ${3:+-H 'Content-Type: application/json' -d "$3"}
    echo
}
upload() { # NAME TEXT: prints the id of the file
    printf '%s' "$2" | curl -sS --fail-with-body "$V1/files" -H "Authorization: Bearer $KEY" \
        -F "file=@-;filename=$1" -F purpose=assistants | sed 's/.*"id":"\([^"]*\)".*/\1/'
}

echo '# Models, and embeddings'
send GET /models
send POST /embeddings '{"model": "all-MiniLM-L6-v2", "input": "a ship", "encoding_format": "base64"}'

echo '# A vector store with two files'
send POST /vector_stores '{"name": "sea-novels"}'
SEALER=$(upload sealer.txt 'A castaway is forced to work on a sealing ship.')
GARDEN=$(upload garden.md 'An orphan wakes a locked garden.')
send POST /vector_stores/sea-novels/files \
    "{\"file_id\": \"$SEALER\", \"attributes\": {\"year\": 1904}}"
send POST /vector_stores/sea-novels/file_batches \
    "{\"file_ids\": [\"$GARDEN\"], \"attributes\": {\"year\": 1911}}"
send GET /vector_stores/sea-novels

echo '# Search: all, and those of a year with a least score'
send POST /vector_stores/sea-novels/search '{"query": "life at sea"}'
send POST /vector_stores/sea-novels/search '{"query": "life at sea", "max_num_results": 1,
    "filters": {"type": "lt", "key": "year", "value": 1910},
    "ranking_options": {"score_threshold": 0.1}}'

echo '# Re-rank, by an encoder and by a collection'
TEXTS='["An orphan wakes a locked garden.", "A boy sails with pirates.", "Whales."]'
for MODEL in all-MiniLM-L6-v2 sea-novels; do
    send POST /rerank "{\"model\": \"$MODEL\", \"query\": \"life at sea\", \"documents\": $TEXTS}"
done

echo '# Delete'
send DELETE "/vector_stores/sea-novels/files/$GARDEN"
send DELETE /vector_stores/sea-novels
send DELETE "/files/$SEALER"
send DELETE "/files/$GARDEN"
